"""SmolLM2 over a cache: read the prompt once, then one token at a time.

Shapes: ``B`` sequences, ``T`` tokens of the prompt, ``V`` tokens in the vocabulary; one
:class:`~mha_book.kv_cache.KVCache` a layer.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import check
from mha_book.cached_attention import cached_multi_head_attention
from mha_book.kv_cache import KVCache, append, init_cache
from mha_book.layers import affine
from mha_book.models._inputs import check_tokens
from mha_book.models.smollm2 import hidden_states, visible_tokens
from mha_book.models.smollm2_params import CONFIG, SmolLM2Config, SmolLM2Layer, SmolLM2Params
from mha_book.multihead import multi_head_attention
from mha_book.rope import rotary_angles

__all__ = ["decode_step", "init_caches", "prefill"]


def init_caches(
    batch: int,
    capacity: int,
    *,
    left: int | None = None,
    config: SmolLM2Config = CONFIG,
    params: SmolLM2Params | None = None,
) -> tuple[KVCache, ...]:
    """Return an empty cache for every layer.

    Args:
        batch: ``B``.
        capacity: the most tokens of a sequence, prompt included; with ``left`` at least
            ``left + 1``, whatever the sequences grow to.
        left: how many tokens before its own each token sees; None for all.
        config: the sizes.
        params: a model whose layers say how many key/value heads each has, as after
            :func:`~mha_book.pruning.removal.prune_model`; None for those of ``config``.

    Returns:
        The caches.

    Raises:
        ValueError: as in :func:`~mha_book.kv_cache.init_cache`.
    """
    heads = [config.num_kv_heads] * config.num_layers
    if params is not None:
        heads = [layer.attention.w_k.shape[1] for layer in params.layers]
    return tuple(init_cache(batch, k, capacity, config.head_dim, left=left) for k in heads)


def prefill(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    caches: tuple[KVCache, ...],
    *,
    config: SmolLM2Config = CONFIG,
    implementation: str | None = None,
) -> tuple[Float[Array, "B V"], tuple[KVCache, ...]]:
    """Read prompts into empty caches.

    The prompts attend to themselves, not to the slots of the cache: of these there may be many
    more, or in a ring buffer fewer.

    Args:
        params: the weights.
        token_ids: ``(B, T)``.
        lengths: ``(B,)``, at least 1: the number of real tokens of each row.
        caches: what :func:`init_caches` gave.
        config: the sizes and constants.
        implementation: passed to :func:`~mha_book.dispatch.attend`.

    Returns:
        The logits of the token after each prompt, ``(B, V)``, and the caches.

    Raises:
        ValueError: an argument's axes do not fit, a cache holds tokens already, or has not as many
            slots as a prompt has tokens (outside ``jax.jit``, as in
            :func:`~mha_book.kv_cache.append`).
    """
    check_tokens(token_ids, lengths, longest=config.max_length)
    _check_caches(caches, config)
    held = caches[0].lengths
    if not isinstance(held, jax.core.Tracer):
        check(not held.any(), "caches", "caches without tokens", f"lengths {held.tolist()}")
    mask = visible_tokens(lengths, caches[0].left)
    angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)
    filled = []

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalised: Array) -> Array:
        attended, inside = multi_head_attention(
            layer.attention,
            normalised,
            mask=mask,
            angles=angles,
            implementation=implementation,
            return_intermediates=True,
        )
        filled.append(append(caches[number], inside.key, inside.value, lengths))
        return attended

    x = hidden_states(params, token_ids, attention, config)  # (B, T, D)
    last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)[:, 0]  # (B, D)
    return affine(last, params.token_embedding.T), tuple(filled)


def decode_step(
    params: SmolLM2Params,
    token_ids: Int[Array, " B"],
    caches: tuple[KVCache, ...],
    *,
    config: SmolLM2Config = CONFIG,
    implementation: str | None = None,
) -> tuple[Float[Array, "B V"], tuple[KVCache, ...]]:
    """Read one more token of each sequence.

    Under ``jax.jit`` donate the caches (``donate_argnames="caches"``), so that the new entries are
    written into them in place.

    Args:
        params: the weights.
        token_ids: ``(B,)``.
        caches: the caches.
        config: the sizes and constants.
        implementation: passed to :func:`~mha_book.dispatch.attend`.

    Returns:
        The logits of the next token, ``(B, V)``, and the caches.

    Raises:
        ValueError: an argument's axes do not fit, or a cache is full (outside ``jax.jit``; inside,
            the logits of that sequence are NaN).
    """
    check(token_ids.ndim == 1, "token_ids", "axes (B,), that is rank 1", f"shape {token_ids.shape}")
    _check_caches(caches, config)
    positions = caches[0].lengths[:, None, None]  # (B, 1, 1): heads, then the one position
    angles = rotary_angles(positions, config.head_dim, config.rope_theta)  # (B, 1, 1, H/2)
    grown = []

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalised: Array) -> Array:
        attended, cache = cached_multi_head_attention(
            layer.attention,
            normalised,
            caches[number],
            angles=angles,
            implementation=implementation,
        )
        grown.append(cache)
        return attended

    x = hidden_states(params, token_ids[:, None], attention, config)  # (B, 1, D)
    return affine(x[:, 0], params.token_embedding.T), tuple(grown)


def _check_caches(caches: tuple[KVCache, ...], config: SmolLM2Config) -> None:
    what = f"one for each of the {config.num_layers} layers"
    check(len(caches) == config.num_layers, "caches", what, len(caches))
