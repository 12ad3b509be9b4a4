"""One circuit of SmolLM2 to its end: the previous-token head L16H0 and the induction head L18H6.

Patterns; QK and OV circuits in tokens; path patching on prompts that differ in one token; ablation
of one head and of eight; exact QK attribution of three heads. What was expected stands in
``expected/head-matrices.md``.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import repeats, windows
from experiments.shared import SOURCES, Reader, Run, experiment, first_layers, stored
from mha_book.attention.reference import attention_weights
from mha_book.layers import rms_norm
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.specialization import circuits, patching
from mha_book.specialization.patterns import at_offset, prefix_matching, visible_pairs
from mha_book.specialization.synthetic import copied_positions

SEEDS = "prompts: 41; tokens of tables: 42; repeated sequences: 43 to measure, 44 for other runs"
INPUTS = (*SOURCES, "heads.json")
VOCABULARY = np.arange(1000, 40_000)

# writer, reader: the circuit; served: a third head whose score is attributed; first: tokens of a
# prompt's first copy; again: of its second; batch: sequences and windows; tokens: of the tables.
Sizes = fields(
    layers=30, writer=(16, 0), reader=(18, 6), served=(20, 6), prompts=8, first=20, again=11,
    batch=8, period=50, tokens=1000,
)  # fmt: skip
QUICK = Sizes(4, (1, 0), (2, 6), (3, 6), 2, 6, 4, 2, 6, 20)


def name_of(head: Any) -> str:
    return f"L{head[0]}H{head[1]}"


class Bench(Reader):
    """The model, its prompts, and runs of it."""

    def __init__(self, model: Any, sizes: Any, top: Any) -> None:
        super().__init__(model)
        self.sizes, self.top = sizes, [tuple(head) for head in top]
        # The last token A of a prompt stands at `again` too, where the corrupted one has another.
        rng = np.random.default_rng(41)
        drawn = [rng.choice(VOCABULARY, sizes.first + 1, False) for _ in range(sizes.prompts)]
        told = np.array([[0, *d[: sizes.first], *d[: sizes.again]] for d in drawn], np.int32)
        other = told.copy()
        other[:, sizes.again] = [d[-1] for d in drawn]
        self.ids, self.other = jnp.asarray(told), jnp.asarray(other)
        self.tokens = np.random.default_rng(42).choice(VOCABULARY, sizes.tokens, replace=False)

    def attention(self, number: int) -> Any:
        return self.params.layers[number].attention

    def gain(self, number: int) -> jax.Array:
        return self.params.layers[number].attention_norm

    def repeated(self, seed: int) -> jax.Array:
        return repeats(self.config, jax.random.key(seed), self.sizes.batch, self.sizes.period)

    def texts(self, split: str) -> jax.Array:
        return windows(self.model, split, self.sizes.batch, 2 * self.sizes.period + 1)

    def in_parts(self, head: tuple[int, int], kept: Any, row: int) -> tuple[jax.Array, jax.Array]:
        """Return a head's queries and keys of one sequence by parts of the stream, (P, T, H)."""
        (number, which), config = head, self.config
        one = {site: kept[site][:, row : row + 1] for site in ("residual", "heads", "mlp")}
        return circuits.qk_attribution(
            self.attention(number), which, circuits.residual_parts(self.params, one, number)[:, 0],
            self.gain(number), epsilon=config.epsilon, theta=config.rope_theta,
        )  # fmt: skip


def of_counts(part: Any) -> Any:
    """Let whole numbers meet others: counts divide scores."""

    @functools.wraps(part)
    def run(bench: Bench) -> dict[str, Any]:
        with jax.numpy_dtype_promotion("standard"):
            return part(bench)

    return run


@of_counts
def patterns(bench: Bench) -> dict[str, Any]:
    found = {}
    for name, ids in (("repeats", bench.repeated(43)), ("addresses", bench.texts("validation"))):
        weights, pairs = bench.run(ids)[1]["weights"], visible_pairs(causal(), *ids.shape)
        for what, pattern, head in (
            ("previous", at_offset(pairs, -1), bench.sizes.writer),
            ("induction", prefix_matching(pairs, ids), bench.sizes.reader),
        ):
            rows = jnp.maximum(pattern.counted.sum(-1), 1)
            score = jnp.where(pattern.counted[..., None], pattern.score, 0) / rows[:, None, None]
            every = np.asarray(jnp.einsum("lbnts,bts->lnb", weights, score))
            found[f"{what} on {name}"] = {
                "score": every[head], "rank": int((every.mean(-1) > every[head].mean()).sum()) + 1,
                "even": (score / pairs.sum(-1, keepdims=True)).sum((1, 2)),
            }  # fmt: skip
    return found


@of_counts
def in_tokens(bench: Bench) -> dict[str, Any]:
    """QK and OV circuits between tokens, with their controls."""
    sizes, wn, (rn, rh) = bench.sizes, bench.sizes.writer[0], bench.sizes.reader
    # Single tokens after the first: the stream before each layer, with no context in it.
    pairs = jnp.stack([jnp.zeros(len(bench.tokens), int), jnp.asarray(bench.tokens)], 1)
    streams = bench.run(pairs)[1]["residual"][:, :, 1]
    alone = [rms_norm(x, bench.gain(n), bench.config.epsilon) for n, x in enumerate(streams)]
    theta, heads = bench.config.rope_theta, range(bench.shape[1])
    by_offset = {}
    for head in heads:
        x = alone[wn]
        scores = jnp.stack([
            circuits.qk_circuit(bench.attention(wn), head, x, x, offset=-back, theta=theta)
            for back in range(9)
        ])  # fmt: skip
        wins = float((scores.argmax(0) == 1).mean())
        by_offset[name_of((wn, head))] = {"previous wins": wins}

    def own_token(sender: tuple[int, int], queries: jax.Array, sources: jax.Array) -> float:
        """The share of tokens whose query matches best what the sender writes about themselves."""
        _, _, w_v, w_o = circuits.head_weights(bench.attention(sender[0]), sender[1])
        keys = (sources @ w_v @ w_o) * bench.gain(rn)[None]
        scores = circuits.qk_circuit(bench.attention(rn), rh, queries, keys)
        return float((scores.argmax(1) == jnp.arange(len(queries))).mean())

    near = [(n, h) for n in range(max(wn - 2, 0), rn) for h in heads]
    readout = bench.params.token_embedding * bench.params.output_norm[None]

    def centered(x: jax.Array) -> jax.Array:
        return x - x.mean(0, keepdims=True)  # what all tokens share chooses none of them

    x, told = alone[rn], centered(readout)[bench.tokens]
    of_tokens = circuits.ov_circuit(bench.attention(rn), rh, centered(x), told)
    own_is_first = (np.asarray(of_tokens).argmax(1) == np.arange(len(x))).mean()
    return {
        "by offset": by_offset, "ov": {name_of(sizes.reader): {"own is first": own_is_first}},
        "own token through": {
            name_of(sender): own_token(sender, x, alone[sender[0]]) for sender in near
        },
    }  # fmt: skip


@of_counts
def paths(bench: Bench) -> dict[str, Any]:
    """What is left of the reader's attention on B when one sender is as in the corrupted run."""
    (_, clean), (_, other) = bench.run(bench.ids), bench.run(bench.other)
    (number, head), sizes, config = bench.sizes.reader, bench.sizes, bench.config
    names = circuits.part_names(number, bench.shape[1])
    writer, stream = names.index(name_of(sizes.writer)), clean["residual"][number]
    here, there = (circuits.residual_parts(bench.params, kept, number) for kept in (clean, other))

    @jax.jit
    def read(params: Any, change: jax.Array) -> dict[str, jax.Array]:
        return {
            route: patching.path_patching(
                params, stream, change, (number, head), route, config=config
            )
            for route in ("query", "key")
        }

    own = {route: clean[route][number][:, head] for route in ("query", "key")}
    found: dict[str, list[Any]] = {"query": [], "key": []}
    for change in there - here:
        for route, projected in read(bench.params, change).items():
            weights = attention_weights(**{**own, route: projected}, is_causal=True)
            found[route].append(np.asarray(weights[:, -1, sizes.again + 1]))
    return {
        "names": names, "whole": clean["weights"][number][:, head, -1, sizes.again + 1],
        **{route: np.mean(each, -1) for route, each in found.items()},
        "of the writer by key": found["key"][writer],
    }  # fmt: skip


@of_counts
def ablated(bench: Bench) -> dict[str, Any]:
    """Losses without heads, three ways."""
    sizes, texts = bench.sizes, bench.texts("validation")
    ids, others = bench.repeated(43), bench.run(bench.repeated(44))[1]["heads"]
    copied = np.asarray(copied_positions(ids, sizes.period))[:, 1:]
    by = {"zero": None, "mean": others.mean((1, 3), keepdims=True), "resample": others}
    of_text = bench.run(bench.texts("train"))[1]["heads"].mean((1, 3), keepdims=True)
    alone = {name_of(head): [head] for head in (sizes.writer, *bench.top)}
    found: dict[str, Any] = {"top": bench.top}
    for name, heads in {"none": (), **alone, "eight": bench.top}.items():
        for kind, values in by.items():
            logits = bench.run(ids, heads, values)[0]
            losses = np.asarray(next_token_losses(logits[:, :-1], ids))
            found[f"{kind} {name}"] = [
                row[on].mean() for row, on in zip(losses, copied, strict=True)
            ]
        if name in ("none", name_of(sizes.writer), name_of(sizes.reader), "eight"):
            losses = next_token_losses(bench.run(texts, heads, of_text)[0][:, :-1], texts)
            found[f"addresses, mean {name}"] = losses.mean(1)
    return found


@of_counts
def attributed(bench: Bench) -> dict[str, Any]:
    """The score of the right key less the mean of the others, by parts of the stream."""
    ids, found, period = bench.repeated(43), {}, bench.sizes.period
    kept, rows = bench.run(ids)[1], np.arange(period + 2, 2 * period)
    for number, head in (bench.sizes.reader, bench.sizes.served, bench.sizes.writer):
        right = rows - (1 if (number, head) == bench.sizes.writer else period - 1)
        share, error = 0.0, 0.0
        for row in range(len(ids)):
            query, key = bench.in_parts((number, head), kept, row)
            own = kept["query"][number, row, head] @ kept["key"][number, row, head].T
            off = query.sum(0) @ key.sum(0).T - own / bench.config.head_dim**0.5
            error = max(error, float(jnp.abs(off).max() / jnp.abs(own).max()) * 8)
            others = (jnp.cumsum(key, 1)[:, rows] - key[:, right]) / rows[None, :, None]
            pairs = jnp.einsum("pth,rth->pr", query[:, rows], key[:, right] - others)
            share = share + np.asarray(pairs, np.float64) / len(rows) / len(ids)
        names = circuits.part_names(number, bench.shape[1])
        scores = {"score": share.sum(), "error": error, "by key": share.sum(0)}
        found[name_of((number, head))] = {"names": names, **scores}
    return found


@experiment("circuit.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    top = ((2, 6), (2, 3)) if run.quick else stored("heads.json")["induction"]["top"]
    bench, found = Bench(first_layers(smollm2.load_smollm2(), sizes.layers), sizes, top), {}
    for part in (patterns, in_tokens, paths, ablated, attributed):
        found[part.__name__] = run.once(
            part.__name__, [sizes, top], lambda part=part: part(bench), 6
        )
    return {**found, "processor seconds": run.seconds()}
