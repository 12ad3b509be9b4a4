"""What the laboratory of the induction circuit shows: L18H6 on short sequences, with heads ablated.

For each sequence: its tokens; how much L16H0 attends from each to the one before; and for what is
ablated (by zero) the attention of L18H6 from the tokens of the second half, and the probability of
the token that follows. What was expected stands in ``expected/induction.md``.
"""

from typing import Any

import jax
import numpy as np

from experiments.circuit import Bench, Sizes
from experiments.shared import SOURCES, Run, experiment
from mha_book.models.smollm2 import load_smollm2
from mha_book.models.tokens import token_strings, tokenize

WORDS = " river seven green justice boat Paris run old"
SEQUENCES = {
    "eight words, twice": 2 * WORDS,
    "the second time in reverse": WORDS + " old run Paris boat justice green seven river",
    "the second time with another color": WORDS + WORDS.replace("green", "yellow"),
    "red before boat and before house": 2 * " red boat old tree red house seven river",
    "a sentence, twice": 2 * " The cat drank the milk because it was fresh.",
    "nothing repeated": WORDS + " clock bread left moon paper nine sing road",
}
WITHOUT: dict[str, Any] = {"nothing": [], "L16H0": [(16, 0)], "L17H8": [(17, 8)],
    "L16H0 and L17H8": [(16, 0), (17, 8)], "L16H4, a control": [(16, 4)]}  # fmt: skip


def on_sequence(bench: Bench, text: str) -> dict[str, Any]:
    ids, (number, head), (layer, writer) = tokenize(bench.model, [text])[0], (18, 6), (16, 0)
    half, found = (ids.shape[1] + 1) // 2, {}
    for name, heads in WITHOUT.items():
        logits, kept = bench.run(ids, heads)
        next_token = np.asarray(jax.nn.softmax(logits[0, half:-1]))
        right = next_token[np.arange(len(next_token)), np.asarray(ids)[0, half + 1 :]]
        found[name] = {"weights": kept["weights"][number, 0, head, half:], "right": right}
        if not heads:
            previous = np.diagonal(np.asarray(kept["weights"][layer, 0, writer]), -1)
    return {"tokens": token_strings(bench.model, ids[0]), "previous": previous, **found}


@experiment("induction.json", digits=3, seeds="none: all is written out", inputs=SOURCES)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    bench = Bench(load_smollm2(), Sizes(), ())
    return {name: on_sequence(bench, text) for name, text in SEQUENCES.items()}
