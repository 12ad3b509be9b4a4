r"""A causal transformer small enough to train here: the layer of this package, norms before it.

Each layer computes, with $\operatorname{LN}$ the layer norm,

$X' = X + \operatorname{MHA}(\operatorname{LN}(X))$ and
$Y = X' + \operatorname{GELU}(\operatorname{LN}(X') W_1 + b_1)\, W_2 + b_2$.

Shapes: ``B`` sequences, ``T`` tokens, ``L`` layers, ``D`` width of the model, ``N`` query heads,
``K`` key/value heads, ``H`` width of a head, ``F`` width inside the feed-forward part, ``V`` tokens
in the vocabulary.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from mha_book._checks import (
    RngKey,
    as_key,
    check,
    check_float_dtype,
    check_floating,
    check_integers,
    check_number,
    check_numbers,
    check_rank,
    check_shape,
    check_size,
    check_type,
)
from mha_book.layers import gelu, layer_norm, linear
from mha_book.models.interface import (
    LayerRecord,
    attended,
    check_gates,
    check_params,
    check_tokens,
    embed_tokens,
    next_token_losses,
)
from mha_book.models.minilm import LayerNormParams, LinearParams
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.parameters import MultiHeadParams, init_multi_head, normal, xavier_uniform
from mha_book.rope import rotary_angles

__all__ = ["TinyConfig", "forward", "forward_with_intermediates", "init_tiny", "loss"]

POSITIONS = ("learned", "rotary", "none")
"""How a tiny transformer can tell positions apart."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class TinyConfig:
    """The sizes of the model; no leaf of a tree, so that jitted functions can be given one.

    Args:
        vocab_size: ``V``.
        max_length: the most tokens of a sequence.
        d_model: ``D``.
        num_layers: ``L``.
        num_heads: ``N``.
        num_kv_heads: ``K``; None for ``N``.
        head_dim: ``H``; None for ``D / N``.
        d_hidden: ``F``; None for ``4 D``, 0 for layers of attention alone.
        positions: one of :data:`POSITIONS`.
        use_bias: whether the projections of attention have biases.
        dropout: rates at the three places of every attention layer, used where a key is given;
            None for no dropout.
        rope_theta: base of the rotary wavelengths.
        epsilon: added to the variance in the layer norms.
    """

    vocab_size: int
    max_length: int = 64
    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    d_hidden: int | None = None
    positions: str = "learned"
    use_bias: bool = True
    dropout: Dropout | None = None
    rope_theta: float = 10_000.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "d_model", "num_layers", "num_heads"):
            size = getattr(self, name)
            check_size(size, name, 1, "a positive integer")
            object.__setattr__(self, name, int(size))  # of NumPy or of Python: the same config
        for name in ("num_kv_heads", "head_dim", "d_hidden"):
            size, least = getattr(self, name), int(name != "d_hidden")
            if size is not None:
                check_size(size, name, least, f"{least} or more, an integer, or None")
                object.__setattr__(self, name, int(size))
        check_number(self.rope_theta, "rope_theta", "a positive number", positive=True)
        check_number(self.epsilon, "epsilon", "a non-negative number")
        for name in ("rope_theta", "epsilon"):
            object.__setattr__(self, name, float(getattr(self, name)))
        is_dropout = self.dropout is None or isinstance(self.dropout, Dropout)
        check(is_dropout, "dropout", "Dropout(weights=0.1) or None", repr(self.dropout))
        known = f"one of {', '.join(POSITIONS)}"
        check(self.positions in POSITIONS, "positions", known, repr(self.positions))


class TinyLayer(NamedTuple):
    """One layer; the last three are None in a model of attention alone."""

    attention_norm: LayerNormParams  # before attention
    attention: MultiHeadParams
    feed_forward_norm: LayerNormParams | None = None  # before the feed-forward part
    widen: LinearParams | None = None  # (D, F)
    narrow: LinearParams | None = None  # (F, D)


class TinyParams(NamedTuple):
    """All weights, a pytree: pass it to jitted functions as an argument."""

    token_embedding: Array  # (V, D)
    position_embedding: Array | None  # (max_length, D); None where positions are not learned
    layers: tuple[TinyLayer, ...]
    output_norm: LayerNormParams
    unembedding: Array  # (D, V)


def init_tiny(rng_key: RngKey, config: TinyConfig, dtype: DTypeLike = jnp.float32) -> TinyParams:
    """Return freshly drawn parameters; ``jax.vmap`` over keys gives as many models.

    Embeddings and the unembedding have a standard deviation of 0.02. The matrices inside the
    layers are drawn by :func:`~mha_book.multihead.parameters.xavier_uniform`. Biases are 0, the
    weights of the norms 1. What is drawn in float32 and cast is the same in every ``dtype``.

    Example:
        >>> params = init_tiny(jax.random.key(0), TinyConfig(vocab_size=7, d_model=8))
        >>> params.layers[0].attention.w_q.shape
        (8, 4, 2)
    """
    check_type(config, "config", TinyConfig)
    check_float_dtype(dtype)
    d, v = config.d_model, config.vocab_size
    hidden = 4 * d if config.d_hidden is None else config.d_hidden
    token_key, position_key, output_key, *layer_keys = jax.random.split(
        as_key(rng_key), 3 + config.num_layers
    )

    def matrix(key: Array, rows: int, columns: int) -> Array:
        return normal(key, rows, columns, (rows, columns), jnp.float32)

    def norm() -> LayerNormParams:
        return LayerNormParams(jnp.ones((d,)), jnp.zeros((d,)))

    def layer(key: Array) -> TinyLayer:
        attention_key, widen_key, narrow_key = jax.random.split(key, 3)
        attention = init_multi_head(
            attention_key,
            d,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            use_bias=config.use_bias,
        )
        if hidden == 0:
            return TinyLayer(norm(), attention)
        widen = xavier_uniform(widen_key, d, hidden, (d, hidden), jnp.float32)
        narrow = xavier_uniform(narrow_key, hidden, d, (hidden, d), jnp.float32)
        maps = LinearParams(widen, jnp.zeros((hidden,))), LinearParams(narrow, jnp.zeros((d,)))
        return TinyLayer(norm(), attention, norm(), *maps)

    learned = config.positions == "learned"
    params = TinyParams(
        matrix(token_key, v, d),
        matrix(position_key, config.max_length, d) if learned else None,
        tuple(layer(key) for key in layer_keys),
        norm(),
        matrix(output_key, d, v),
    )
    drawn: TinyParams = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return drawn


def forward(
    params: TinyParams,
    token_ids: Int[Array, "B T"],
    *,
    config: TinyConfig,
    gates: Float[Array, "L N"] | None = None,
    rng_key: RngKey | None = None,
    implementation: str | None = None,
    positions: Int[Array, " T"] | None = None,
    attention: Callable[..., Array] = multi_head_attention,
) -> Float[Array, "B T V"]:
    """Return the logits of the next token at every position.

    Args:
        params: the weights.
        token_ids: ``(B, T)``; an id that is none of 0 to ``V - 1`` gives NaN.
        config: the sizes and the rates of dropout.
        gates: ``(L, N)``, one factor for the output of each head; None for ones.
        rng_key: PRNG key of the dropout, split over the layers; None for no dropout whatever the
            rates are, as outside training.
        implementation: passed to :func:`~mha_book.attention.dispatch.attend`.
        positions: ``(T,)``, the place of each token in its text, where they lie in another order
            (``attention`` has to know that order too, for its mask); None for their own order.
        attention: the layer, or what is called in its place, for example
            :func:`~mha_book.sharding.layer.sharded_multi_head_attention` with its mesh.

    Returns:
        Logits ``(B, T, V)``.

    Example:
        >>> config = TinyConfig(vocab_size=7, d_model=8)
        >>> params = init_tiny(jax.random.key(0), config)
        >>> forward(params, jnp.array([[1, 2, 3]]), config=config).shape
        (1, 3, 7)
    """
    options: dict[str, Any] = {"gates": gates, "rng_key": rng_key, "implementation": implementation}

    def layer(params: MultiHeadParams, x: Array, inputs: Array, **more: Any) -> Array:
        return attention(params, x, **more)

    return _forward(params, token_ids, layer, config=config, positions=positions, **options)


def forward_with_intermediates(
    params: TinyParams, token_ids: Int[Array, "B T"], *, config: TinyConfig, **options: Any
) -> tuple[Float[Array, "B T V"], tuple[LayerRecord, ...]]:
    """Return the logits of :func:`forward`, and what happened inside every layer.

    The arguments are those of :func:`forward`, but for ``attention``.

    Returns:
        Logits ``(B, T, V)``, and a tuple of ``L``
        :class:`~mha_book.models.interface.LayerRecord`.
    """
    records: list[LayerRecord] = []
    layer = functools.partial(attended, records=records)
    return _forward(params, token_ids, layer, config=config, **options), tuple(records)


def _forward(
    params: TinyParams,
    token_ids: Array,
    attention: Callable[..., Array],
    *,
    config: TinyConfig,
    gates: Array | None = None,
    rng_key: RngKey | None = None,
    implementation: str | None = None,
    positions: Array | None = None,
) -> Array:
    check_params(params, TinyParams)
    check_type(config, "config", TinyConfig)
    _check_embeddings(params, config)
    what = f"as many layers as params have, {len(params.layers)}"
    check(config.num_layers == len(params.layers), "config.num_layers", what, config.num_layers)
    check_tokens(token_ids, None, longest=config.max_length)
    check_gates(gates, config.num_layers, config.num_heads)
    given: dict[str, Any] = {
        "angles": angles(config, token_ids, positions),
        "dropout": None if rng_key is None else config.dropout,
        "implementation": implementation,
    }
    given = {name: value for name, value in given.items() if value is not None}
    keys = None if rng_key is None else jax.random.split(as_key(rng_key), config.num_layers)
    x = embed_tokens(params.token_embedding, token_ids)  # (B, T, D)
    if params.position_embedding is not None:
        table = params.position_embedding
        length = token_ids.shape[1]
        x = x + (table[:length] if positions is None else embed_tokens(table, positions))[None]
    for i, layer in enumerate(params.layers):
        of_layer = given | ({} if gates is None else {"gates": gates[i]})
        of_layer |= {} if keys is None else {"rng_key": keys[i]}
        normalized = layer_norm(x, *layer.attention_norm, config.epsilon)
        x = x + attention(layer.attention, normalized, inputs=x, is_causal=True, **of_layer)
        if layer.feed_forward_norm is not None and layer.widen is not None:
            assert layer.narrow is not None
            normalized = layer_norm(x, *layer.feed_forward_norm, config.epsilon)
            x = x + linear(gelu(linear(normalized, *layer.widen)), *layer.narrow)
    x = layer_norm(x, *params.output_norm, config.epsilon)
    return linear(x, params.unembedding)  # (B, T, V)


def _check_embeddings(params: TinyParams, config: TinyConfig) -> None:
    """Raise unless the tables are those of a model of this config."""
    token, position, width = params.token_embedding, params.position_embedding, config.d_model
    check_numbers(token, "token_embedding", (config.vocab_size, width), "axes (V, D) =")
    if config.positions == "learned":
        check_floating(position, "position_embedding", token, "token_embedding")
        check_shape(position, "position_embedding", (config.max_length, width), "axes (T, D) =")
    else:
        what = f"None, as config.positions is {config.positions!r}"
        check(position is None, "position_embedding", what, repr(type(position)))


def angles(
    config: TinyConfig, token_ids: Int[Array, "B T"], positions: Int[Array, " T"] | None = None
) -> Float[Array, "T pairs"] | None:
    """Return the angles that every layer rotates queries and keys by, ``(T, H/2)``, or None."""
    check_type(config, "config", TinyConfig)
    check_rank(token_ids, "token_ids", "(B, T)", 2)
    if positions is not None:
        check_integers(positions, "positions")
        check_shape(positions, "positions", token_ids.shape[1:], "one place for each token")
    if config.positions != "rotary":
        return None
    head_dim = config.head_dim or config.d_model // config.num_heads
    places = jnp.arange(token_ids.shape[1]) if positions is None else positions
    return rotary_angles(places, head_dim, config.rope_theta)


def token_losses(
    params: TinyParams, token_ids: Int[Array, "B T"], *, config: TinyConfig, **options: Any
) -> Float[Array, "B T-1"]:
    """Return the negative log-likelihood of each token but the first, ``(B, T - 1)``, in nats.

    The arguments are those of :func:`forward`, with ``T >= 2``: the first token is given, not
    predicted, so that ``T`` may exceed ``max_length`` by one.
    """
    check_type(config, "config", TinyConfig)
    check_tokens(token_ids, None, longest=config.max_length + 1)
    check(token_ids.shape[1] > 1, "token_ids", "two tokens or more, axis T", token_ids.shape)
    logits = forward(params, token_ids[:, :-1], config=config, **options)
    return next_token_losses(logits, token_ids)


def loss(
    params: TinyParams, token_ids: Int[Array, "B T"], *, config: TinyConfig, **options: Any
) -> Float[Array, ""]:
    """Return the mean negative log-likelihood of each token given those before it, in nats.

    The arguments are those of :func:`token_losses`.

    Returns:
        A scalar; ``log(V)`` where the model knows nothing.

    Example:
        >>> config = TinyConfig(vocab_size=7, d_model=8)
        >>> params = init_tiny(jax.random.key(0), config)
        >>> bool(abs(loss(params, jnp.array([[1, 2, 3]]), config=config) - jnp.log(7)) < 0.5)
        True
    """
    return jnp.mean(token_losses(params, token_ids, config=config, **options))
