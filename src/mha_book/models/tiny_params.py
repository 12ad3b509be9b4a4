"""The sizes and the parameters of the tiny transformer.

Shapes: ``L`` layers, ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``H``
width of a head, ``F`` width inside the feed-forward part, ``V`` tokens in the vocabulary.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Key

from mha_book._checks import check
from mha_book.dropout import Dropout
from mha_book.initialisers import init_multi_head, normal, xavier_uniform
from mha_book.models.minilm_params import AffineParams, LayerNormParams
from mha_book.parameters import MultiHeadParams

__all__ = ["POSITIONS", "TinyConfig", "TinyLayer", "TinyParams", "init_tiny"]

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

    Raises:
        ValueError: a size is not a positive integer, or ``positions`` is unknown.
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
            check(isinstance(size, int) and size > 0, name, "a positive integer", repr(size))
        hidden = 0 if self.d_hidden is None else self.d_hidden
        check(isinstance(hidden, int) and hidden >= 0, "d_hidden", "0 or more", repr(hidden))
        known = f"one of {', '.join(POSITIONS)}"
        check(self.positions in POSITIONS, "positions", known, repr(self.positions))


class TinyLayer(NamedTuple):
    """One layer; the last three are None in a model of attention alone.

    Args:
        attention_norm: the layer norm before attention.
        attention: the multi-head parameters.
        feed_forward_norm: the layer norm before the feed-forward part.
        widen: its first map, ``(D, F)``.
        narrow: its second, ``(F, D)``.
    """

    attention_norm: LayerNormParams
    attention: MultiHeadParams
    feed_forward_norm: LayerNormParams | None = None
    widen: AffineParams | None = None
    narrow: AffineParams | None = None


class TinyParams(NamedTuple):
    """All weights, a pytree: pass it to jitted functions as an argument.

    Args:
        token_embedding: ``(V, D)``.
        position_embedding: ``(max_length, D)``, or None where positions are not learned.
        layers: one :class:`TinyLayer` a layer.
        output_norm: the layer norm after the last layer.
        unembedding: ``(D, V)``, from the residual stream to logits.
    """

    token_embedding: Array
    position_embedding: Array | None
    layers: tuple[TinyLayer, ...]
    output_norm: LayerNormParams
    unembedding: Array


def init_tiny(
    rng_key: Key[Array, ""], config: TinyConfig, dtype: DTypeLike = jnp.float32
) -> TinyParams:
    """Return freshly drawn parameters; ``jax.vmap`` over keys gives as many models.

    Embeddings and the unembedding have a standard deviation of 0.02, the matrices inside the
    layers are drawn by :func:`~mha_book.initialisers.xavier_uniform`, biases are 0, the weights of
    the norms 1. What is drawn in float32 and cast is the same in every ``dtype``.

    Args:
        rng_key: PRNG key.
        config: the sizes.
        dtype: dtype of the parameters.

    Returns:
        The parameters.

    Raises:
        ValueError: the sizes do not fit, see :func:`~mha_book.initialisers.init_multi_head`.

    Example:
        >>> params = init_tiny(jax.random.key(0), TinyConfig(vocab_size=7, d_model=8))
        >>> params.layers[0].attention.w_q.shape
        (8, 4, 2)
    """
    d, v = config.d_model, config.vocab_size
    hidden = 4 * d if config.d_hidden is None else config.d_hidden
    token_key, position_key, output_key, *layer_keys = jax.random.split(
        rng_key, 3 + config.num_layers
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
        maps = AffineParams(widen, jnp.zeros((hidden,))), AffineParams(narrow, jnp.zeros((d,)))
        return TinyLayer(norm(), attention, norm(), *maps)

    learned = config.positions == "learned"
    params = TinyParams(
        matrix(token_key, v, d),
        matrix(position_key, config.max_length, d) if learned else None,
        tuple(layer(key) for key in layer_keys),
        norm(),
        matrix(output_key, d, v),
    )
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)
