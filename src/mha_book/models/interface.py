"""What every model takes and gives: checked tokens, lengths and gates; records; losses of tokens.

Shapes: ``B`` sequences, ``T`` tokens, ``L`` layers, ``N`` heads, ``H`` width of a head, ``D`` width
of the model, ``V`` tokens in the vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_floating, check_integers, check_rank, widen
from mha_book.multihead.layer import (
    Intermediates,
    multi_head_attention,
    multi_head_attention_with_intermediates,
)
from mha_book.multihead.parameters import MultiHeadParams

__all__ = ["LayerRecord", "next_token_losses"]


class LayerRecord(NamedTuple):
    """What one layer saw, and what happened inside its attention.

    Args:
        inputs: ``(B, T, D)``, the hidden states before the layer; SmolLM2 normalizes them first.
        intermediates: its queries, keys, values, weights ``(B, N, T, T)`` and per-head outputs
            ``(B, N, T, H)``.
    """

    inputs: Array
    intermediates: Intermediates


def attended(
    params: MultiHeadParams,
    x: Array,
    inputs: Array,
    records: list[LayerRecord] | None,
    **options: Any,
) -> Array:
    """Return what a layer's attention gives for ``x``, and append to ``records``, if there are any.

    This is where a model calls the layer.
    """
    options = {name: given for name, given in options.items() if given is not None}
    if records is None:
        return jnp.asarray(multi_head_attention(params, x, **options))
    output, inside = multi_head_attention_with_intermediates(params, x, **options)
    records.append(LayerRecord(inputs, inside))
    return output


def check_params(params: Any, kind: type) -> None:
    """Raise unless ``params`` are the tree of the model that is called."""
    if not isinstance(params, kind):
        is_loaded = isinstance(getattr(params, "params", None), kind)
        expected = kind.__name__ + (": write model.params" if is_loaded else "")
        check(False, "params", expected, type(params).__name__)


def real_tokens(
    token_ids: Int[Array, "B T"], lengths: Int[Array, " B"] | None
) -> Int[Array, "B T"]:
    """Return the tokens with 0 behind each length: what fills a row up must not matter."""
    if lengths is None:
        return token_ids
    position = jnp.arange(token_ids.shape[1])[None, :]
    is_real = position < lengths.astype(position.dtype)[:, None]
    return jnp.where(is_real, token_ids, jnp.zeros((), token_ids.dtype))


def embed_tokens(table: Float[Array, "V D"], token_ids: Int[Array, "*batch"]) -> Array:
    """Return the row of each token; NaN for an id that is none of 0 to ``V - 1``.

    Example:
        >>> embed_tokens(jnp.ones((3, 1)), jnp.array([2, 3, -1])).ravel().tolist()
        [1.0, nan, nan]
    """
    return jnp.take(table, _known(token_ids, table.shape[0]), axis=0, mode="fill")


def _known(token_ids: Array, size: int) -> Array:
    """Return the ids with ``size``, which is out of bounds, for the negative: none counts back."""
    is_narrow = token_ids.dtype.itemsize < 4  # too narrow for the number of tokens
    ids = token_ids.astype(jnp.int32) if is_narrow else jnp.asarray(token_ids)
    return jnp.where(ids < 0, jnp.asarray(size, ids.dtype), ids)


def check_tokens(token_ids: Any, lengths: Any, longest: int) -> None:
    """Raise unless ``token_ids`` are ``(B, T)``, ``T <= longest``, and ``lengths`` fit."""
    check_integers(token_ids, "token_ids")
    shape = tuple(token_ids.shape)
    check(len(shape) == 2, "token_ids", "axes (B, T), that is rank 2", f"shape {shape}")
    check(shape[1] <= longest, "token_ids", f"at most {longest} tokens, axis T", f"shape {shape}")
    if lengths is not None:
        check_lengths(lengths, token_ids, "token_ids")


def check_lengths(lengths: Any, like: Any, like_name: str, least: int = 0) -> None:
    """Raise unless there is one length for each row of ``like``, of ``least`` or more."""
    check_integers(lengths, "lengths")
    expected = (like.shape[0],)
    what = f"one length for each row of {like_name}, axes (B,) = {expected}"
    check(tuple(lengths.shape) == expected, "lengths", what, f"shape {tuple(lengths.shape)}")
    if not isinstance(lengths, jax.core.Tracer):
        values, most = np.asarray(lengths), like.shape[1]
        fits = bool(((values >= least) & (values <= most)).all())
        what = f"numbers from {least} to {most}, the tokens of a row"
        check(fits, "lengths", what, values.tolist())


def check_gates(gates: Any, num_layers: int, num_heads: int) -> None:
    """Raise unless ``gates`` are None or have one number for each head of each layer."""
    if gates is not None:
        check_floating(gates, "gates")
        expected = (num_layers, num_heads)
        what = f"one number for each head of each layer, axes (L, N) = {expected}"
        check(tuple(gates.shape) == expected, "gates", what, f"shape {tuple(gates.shape)}")


def next_token_losses(
    logits: Float[Array, "B predicted V"], token_ids: Int[Array, "B T"]
) -> Float[Array, "B predicted"]:
    """Return the negative log-likelihood of each token but the first, in nats.

    Args:
        logits: ``(B, T - 1, V)``, those of the last token left out: nothing follows it.
        token_ids: ``(B, T)``.

    Returns:
        ``(B, T - 1)``, float32 or wider; NaN for a token that is none of 0 to ``V - 1``. No number
        marks what is not to be predicted: leave these losses out.

    Example:
        >>> next_token_losses(jnp.zeros((1, 2, 4)), jnp.array([[3, 0, 2]])).tolist() == [
        ...     [float(jnp.log(4))] * 2
        ... ]
        True
    """
    check_rank(logits, "logits", "(B, T - 1, V)", 3)
    check_floating(logits, "logits")
    check_integers(token_ids, "token_ids")
    expected = (token_ids.shape[0], token_ids.shape[1] - 1)
    what = f"axes (B, T - 1) = {expected} before V"
    check(tuple(logits.shape[:-1]) == expected, "logits", what, f"shape {tuple(logits.shape)}")
    log_probabilities = jax.nn.log_softmax(widen(logits), axis=-1)
    next_ids = _known(token_ids[:, 1:, None], logits.shape[-1])
    return -jnp.take_along_axis(log_probabilities, next_ids, axis=-1, mode="fill")[..., 0]
