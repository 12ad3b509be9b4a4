"""The parameters of all-MiniLM-L6-v2: their shapes, from a checkpoint, and untrained.

Shapes: ``L`` layers, ``D`` width of the model, ``N`` heads, ``H`` width of a head, ``F`` width
inside the feed-forward part, ``V`` tokens in the vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from mha_book.initialisers import init_multi_head, normal
from mha_book.parameters import MultiHeadParams

__all__ = [
    "CONFIG",
    "AffineParams",
    "EmbeddingParams",
    "LayerNormParams",
    "LayerParams",
    "MiniLMConfig",
    "MiniLMParams",
    "from_checkpoint",
    "init_minilm",
]


class MiniLMConfig(NamedTuple):
    """The sizes of the model; the defaults are those of all-MiniLM-L6-v2.

    Args:
        vocab_size: ``V``.
        max_length: the most tokens a sentence may have, the special ones included.
        d_model: ``D``.
        num_layers: ``L``.
        num_heads: ``N``.
        head_dim: ``H``.
        d_hidden: ``F``.
        epsilon: added to the variance in the layer norms.
        pad_id: the token that fills a row up.
    """

    vocab_size: int = 30522
    max_length: int = 512
    d_model: int = 384
    num_layers: int = 6
    num_heads: int = 12
    head_dim: int = 32
    d_hidden: int = 1536
    epsilon: float = 1e-12
    pad_id: int = 0


CONFIG = MiniLMConfig()
"""The sizes of all-MiniLM-L6-v2."""


class LayerNormParams(NamedTuple):
    """A layer norm: ``weight`` and ``bias``, both ``(D,)``."""

    weight: Array
    bias: Array


class AffineParams(NamedTuple):
    """An affine map: ``weight`` ``(D, F)`` and ``bias`` ``(F,)``."""

    weight: Array
    bias: Array


class EmbeddingParams(NamedTuple):
    """What turns tokens into vectors: the sum of three embeddings, normalised.

    Args:
        word: ``(V, D)``, by token.
        position: ``(max_length, D)``, by position.
        kind: ``(2, D)``, by sentence of a pair; a single sentence has kind 0 throughout.
        norm: the layer norm of the sum.
    """

    word: Array
    position: Array
    kind: Array
    norm: LayerNormParams


class LayerParams(NamedTuple):
    """One layer.

    Args:
        attention: the multi-head layer, all biases present.
        attention_norm: the layer norm after it.
        widen: the first map of the feed-forward part, ``(D, F)``.
        narrow: the second, ``(F, D)``.
        output_norm: the layer norm at the end.
    """

    attention: MultiHeadParams
    attention_norm: LayerNormParams
    widen: AffineParams
    narrow: AffineParams
    output_norm: LayerNormParams


class MiniLMParams(NamedTuple):
    """All weights, a pytree: pass it to jitted functions as an argument.

    Args:
        embeddings: of tokens and positions.
        layers: one :class:`LayerParams` a layer.
    """

    embeddings: EmbeddingParams
    layers: tuple[LayerParams, ...]


def from_checkpoint(tensors: Mapping[str, Any], config: MiniLMConfig = CONFIG) -> MiniLMParams:
    """Sort the tensors of a BERT checkpoint into the pytree.

    A checkpoint of torch has its matrices as ``(out, in)``; here they are ``(in, out)``, and those
    of attention have the heads as an axis of their own.

    Args:
        tensors: NumPy arrays by their names in the checkpoint. The pooler's are not used.
        config: the sizes.

    Returns:
        The parameters, in the dtype of the checkpoint.

    Raises:
        KeyError: a tensor is missing.
    """
    parts = ("weight", "bias")
    heads = (config.num_heads, config.head_dim)

    def norm(name: str) -> LayerNormParams:
        weight, bias = (jnp.asarray(tensors[f"{name}.LayerNorm.{part}"]) for part in parts)
        return LayerNormParams(weight, bias)

    def dense(name: str) -> AffineParams:
        weight, bias = (tensors[f"{name}.{part}"] for part in parts)
        return AffineParams(jnp.asarray(weight.T), jnp.asarray(bias))  # (in, out), (out,)

    def layer(name: str) -> LayerParams:
        projections = [dense(f"{name}.attention.self.{x}") for x in ("query", "key", "value")]
        w_q, w_k, w_v = (jnp.reshape(p.weight, (config.d_model, *heads)) for p in projections)
        b_q, b_k, b_v = (jnp.reshape(p.bias, heads) for p in projections)
        out = dense(f"{name}.attention.output.dense")
        w_o = jnp.reshape(out.weight, (*heads, config.d_model))
        return LayerParams(
            MultiHeadParams(w_q, w_k, w_v, w_o, b_q, b_k, b_v, out.bias),
            norm(f"{name}.attention.output"),
            dense(f"{name}.intermediate.dense"),
            dense(f"{name}.output.dense"),
            norm(f"{name}.output"),
        )

    tables = ("word", "position", "token_type")
    word, position, kind = (
        jnp.asarray(tensors[f"embeddings.{table}_embeddings.weight"]) for table in tables
    )
    layers = tuple(layer(f"encoder.layer.{number}") for number in range(config.num_layers))
    return MiniLMParams(EmbeddingParams(word, position, kind, norm("embeddings")), layers)


def init_minilm(rng_key: Key[Array, ""], config: MiniLMConfig = CONFIG) -> MiniLMParams:
    """Draw untrained parameters, as BERT starts: a control for what training has done.

    Args:
        rng_key: PRNG key.
        config: the sizes.

    Returns:
        The parameters, float32.

    Example:
        >>> tiny = MiniLMConfig(vocab_size=7, d_model=6, num_layers=2, num_heads=3, head_dim=2)
        >>> init_minilm(jax.random.key(0), tiny).layers[1].attention.w_q.shape
        (6, 3, 2)
    """
    keys = iter(jax.random.split(rng_key, 3 + 3 * config.num_layers))
    width, hidden = config.d_model, config.d_hidden

    def draw(rows: int, columns: int) -> Array:
        return normal(next(keys), rows, columns, (rows, columns), jnp.float32)

    norm = LayerNormParams(jnp.ones(width), jnp.zeros(width))
    word, position, kind = (draw(r, width) for r in (config.vocab_size, config.max_length, 2))
    layers = tuple(
        LayerParams(
            init_multi_head(
                next(keys),
                width,
                config.num_heads,
                head_dim=config.head_dim,
                use_bias=True,
                initialiser=normal,
            ),
            norm,
            AffineParams(draw(width, hidden), jnp.zeros(hidden)),
            AffineParams(draw(hidden, width), jnp.zeros(width)),
            norm,
        )
        for _ in range(config.num_layers)
    )
    return MiniLMParams(EmbeddingParams(word, position, kind, norm), layers)
