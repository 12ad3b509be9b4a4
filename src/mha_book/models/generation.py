"""Writing text with SmolLM2.

Shapes: ``B`` sequences, ``T`` tokens of the prompt, ``V`` tokens in the vocabulary.
"""

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mha_book._checks import (
    RngKey,
    accumulator_dtype,
    as_key,
    check,
    check_floating,
    check_number,
    check_size,
    check_type,
)
from mha_book.models.interface import check_lengths, check_params, check_tokens
from mha_book.models.smollm2 import (
    SmolLM2,
    SmolLM2Config,
    SmolLM2Params,
    decode_step,
    init_caches,
    prefill,
)

__all__ = ["generate", "sample_token"]


def sample_token(
    logits: Float[Array, "B V"],
    rng_key: RngKey | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Int[Array, " B"]:
    """Choose the next token: the likeliest, or with a key a random one.

    Args:
        logits: ``(B, V)``.
        rng_key: PRNG key, or an integer seed; None for the likeliest token.
        temperature: positive; divides the logits.
        top_k: choose among that many likeliest tokens, of equal ones the first; None for all.

    Returns:
        ``(B,)``, int32. Inside ``jax.jit``, where nothing can be raised, -1 for a row of logits
        whose largest is not a number or infinite, and for all at a temperature that is not a
        positive number.

    Example:
        >>> sample_token(jnp.array([[0.0, 2.0, 1.0]])).tolist()
        [1]
    """
    check_floating(logits, "logits")
    check(logits.ndim == 2, "logits", "axes (B, V), that is rank 2", f"shape {logits.shape}")
    _check_choice(temperature, top_k, logits.shape[-1])
    has_choice = jnp.isfinite(jnp.max(logits, axis=-1))
    if not isinstance(has_choice, jax.core.Tracer):
        rows = np.flatnonzero(~np.asarray(has_choice))
        check(not rows.size, "logits", "a finite maximum in each row", f"none in {rows.tolist()}")
    if rng_key is None:
        chosen = jnp.argmax(logits, axis=-1)
    else:
        if top_k is not None:
            best, ids = jax.lax.top_k(logits, int(top_k))  # (B, top_k); of equal ones the first
            row = jnp.arange(logits.shape[0])[:, None]
            logits = jnp.full_like(logits, -jnp.inf).at[row, ids].set(best)
        has_choice &= jnp.isfinite(temperature) & (jnp.asarray(temperature) > 0)
        # The largest is 0 before the division, so that none is too small for it.
        below = (logits - jnp.max(logits, axis=-1, keepdims=True)).astype(
            accumulator_dtype(logits.dtype)
        )
        scaled = below / jnp.asarray(temperature, below.dtype)
        chosen = jax.random.categorical(as_key(rng_key), scaled)
    return jnp.where(has_choice, chosen, -1).astype(jnp.int32)


def _check_choice(temperature: Any, top_k: Any, size: int) -> None:
    check_number(temperature, "temperature", "a positive number", positive=True)
    if top_k is not None:
        what = f"an integer from 1 to {size}, or None"
        check_size(top_k, "top_k", 1, what)
        check(top_k <= size, "top_k", what, top_k)


def generate(
    model: SmolLM2,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    num_tokens: int,
    *,
    rng_key: RngKey | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    window: int | None = None,
    stop_ids: Sequence[int] = (),
) -> Int[np.ndarray, "B written"]:
    """Continue prompts by ``num_tokens`` tokens, the likeliest ones or random ones.

    Progress shows on a terminal.

    Args:
        model: what :func:`~mha_book.models.smollm2.load_smollm2` gave; its ``params`` may be of
            fewer heads, as :func:`~mha_book.pruning.removal.prune_model` gives them.
        token_ids: ``(B, T)``, as :func:`~mha_book.models.tokens.tokenize` gives them.
        lengths: ``(B,)``, at least 1: the number of real tokens of each prompt.
        num_tokens: how many tokens to write.
        rng_key: PRNG key for random tokens, or an integer seed; None for the likeliest.
        temperature: as in :func:`sample_token`.
        top_k: as in :func:`sample_token`.
        window: how many tokens each token sees, itself included; None for all.
        stop_ids: a sequence that has written one of these is finished: what follows is the pad
            token. When all are finished, fewer than ``num_tokens`` columns come back.

    Returns:
        ``(B, num_tokens)``, the new tokens alone, int32.
    """
    what = "a loaded model: params, config and tokenizer"
    check(isinstance(model, SmolLM2), "model", what, type(model).__name__)
    check_params(model.params, SmolLM2Params)
    check_type(model.config, "model.config", SmolLM2Config)
    check_tokens(token_ids, lengths, longest=model.config.max_length)
    check_lengths(lengths, token_ids, "token_ids", least=1)  # that are needed here
    check_size(num_tokens, "num_tokens", 1, "a positive number of tokens, an integer")
    num_tokens = int(num_tokens)
    ids, size = np.asarray(token_ids), model.config.vocab_size
    is_real = np.arange(ids.shape[1]) < np.asarray(lengths)[:, None]
    strange = ids[is_real & ~((ids >= 0) & (ids < size))]
    check(not strange.size, "token_ids", f"numbers from 0 to {size - 1}", strange.tolist())
    _check_choice(temperature, top_k, size)
    stops = np.asarray([*stop_ids] if np.iterable(stop_ids) else None)
    is_list = stops.size == 0 or (stops.ndim == 1 and np.issubdtype(stops.dtype, np.integer))
    check(is_list, "stop_ids", "a list of token ids", repr(stop_ids))
    if window is not None:
        check_size(window, "window", 1, "a positive integer, or None")
        window = int(window)
    rng_key = None if rng_key is None else as_key(rng_key)
    longest = token_ids.shape[1] + num_tokens
    what = f"at most {model.config.max_length} tokens, prompt and new ones together"
    check(longest <= model.config.max_length, "num_tokens", what, longest)
    if window is not None and window >= longest:
        window = None  # it hides nothing
    capacity = longest if window is None else window
    caches = init_caches(
        token_ids.shape[0], capacity, window=window, config=model.config, params=model.params
    )
    logits, caches = _prefill(model.params, token_ids, lengths, caches, config=model.config)
    written: list[np.ndarray] = []
    finished = np.zeros(token_ids.shape[0], bool)
    for number in range(num_tokens):
        step_key = None if rng_key is None else jax.random.fold_in(rng_key, number)
        tokens = sample_token(logits, step_key, temperature=temperature, top_k=top_k)
        written.append(np.where(finished, model.config.pad_id, np.asarray(tokens)))
        finished |= np.isin(written[-1], stops)
        _show(number + 1, num_tokens, done=bool(finished.all()))
        if finished.all() or number + 1 == num_tokens:
            break
        logits, caches = _step(model.params, tokens, caches, config=model.config)
    return np.stack(written, axis=1).astype(np.int32)


_OPTIONS: dict[str, Any] = {
    "static_argnames": ("config", "implementation"),
    "donate_argnames": ("caches",),
}
_prefill = jax.jit(prefill, **_OPTIONS)
_step = jax.jit(decode_step, **_OPTIONS)


def _show(number: int, of: int, done: bool) -> None:
    """Count the tokens on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done or number == of else ""
        print(f"\rSmolLM2: token {number} of {of}", end=end, file=sys.stderr, flush=True)
