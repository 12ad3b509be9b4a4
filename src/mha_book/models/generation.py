"""Writing text with SmolLM2.

Shapes: ``B`` sequences, ``T`` tokens of the prompt, ``V`` tokens in the vocabulary.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from mha_book._checks import check
from mha_book.models.interface import check_tokens
from mha_book.models.smollm2 import SmolLM2, decode_step, init_caches, prefill

__all__ = ["generate", "sample_token"]


def sample_token(
    logits: Float[Array, "B V"],
    rng_key: Key[Array, ""] | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Int[Array, " B"]:
    """Choose the next token: the likeliest, or with a key a random one.

    Args:
        logits: ``(B, V)``.
        rng_key: PRNG key; None for the likeliest token.
        temperature: positive; divides the logits.
        top_k: choose among that many likeliest tokens; None for all.

    Returns:
        ``(B,)``, int32.

    Raises:
        ValueError: ``temperature`` is not positive, or ``top_k`` not between 1 and ``V``.

    Example:
        >>> sample_token(jnp.array([[0.0, 2.0, 1.0]])).tolist()
        [1]
    """
    check(temperature > 0, "temperature", "a positive number", temperature)
    size = logits.shape[-1]
    is_count = top_k is None or (isinstance(top_k, int) and 1 <= top_k <= size)
    check(is_count, "top_k", f"an integer from 1 to {size}, or None", repr(top_k))
    if rng_key is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if top_k is not None:
        least = jax.lax.top_k(logits, top_k)[0][:, -1:]  # (B, 1)
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    scaled = logits / jnp.asarray(temperature, logits.dtype)
    return jax.random.categorical(rng_key, scaled).astype(jnp.int32)


def generate(
    model: SmolLM2,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    num_tokens: int,
    *,
    rng_key: Key[Array, ""] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    window: int | None = None,
    stop_ids: Sequence[int] = (),
) -> Int[np.ndarray, "B written"]:
    """Continue prompts by ``num_tokens`` tokens, the likeliest ones or random ones.

    Progress shows on a terminal.

    Args:
        model: what :func:`~mha_book.models.smollm2.load_smollm2` gave.
        token_ids: ``(B, T)``, as :func:`~mha_book.models.tokens.tokenize` gives them.
        lengths: ``(B,)``, at least 1: the number of real tokens of each prompt.
        num_tokens: how many tokens to write.
        rng_key: PRNG key for random tokens; None for the likeliest.
        temperature: as in :func:`sample_token`.
        top_k: as in :func:`sample_token`.
        window: how many tokens before its own each token sees; None for all.
        stop_ids: a sequence that has written one of these is finished: what follows is the pad
            token. When all are finished, fewer than ``num_tokens`` columns come back.

    Returns:
        ``(B, num_tokens)``, the new tokens alone, int32.

    Raises:
        ValueError: an argument does not fit, or prompt and new tokens are longer than the model
            reads.
    """
    check_tokens(token_ids, lengths, longest=model.config.max_length)
    check(num_tokens > 0, "num_tokens", "a positive number", num_tokens)
    check(bool((lengths >= 1).all()), "lengths", "at least 1 each", lengths.tolist())
    longest = token_ids.shape[1] + num_tokens
    what = f"at most {model.config.max_length} tokens, prompt and new ones together"
    check(longest <= model.config.max_length, "num_tokens", what, longest)
    if window is not None and window >= longest:
        window = None  # it hides nothing
    capacity = longest if window is None else window + 1
    caches = init_caches(token_ids.shape[0], capacity, window=window, config=model.config)
    choose = _compiled_sampler(temperature, top_k)
    logits, caches = _prefill(model.params, token_ids, lengths, caches, config=model.config)
    written: list[np.ndarray] = []
    finished = np.zeros(token_ids.shape[0], bool)
    for number in range(num_tokens):
        step_key = None if rng_key is None else jax.random.fold_in(rng_key, number)
        tokens = choose(logits, step_key)
        written.append(np.where(finished, model.config.pad_id, np.asarray(tokens)))
        finished |= np.isin(written[-1], list(stop_ids))
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


@functools.cache
def _compiled_sampler(temperature: float, top_k: int | None) -> Any:
    return jax.jit(functools.partial(sample_token, temperature=temperature, top_k=top_k))


def _show(number: int, of: int, done: bool) -> None:
    """Count the tokens on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done or number == of else ""
        print(f"\rSmolLM2: token {number} of {of}", end=end, file=sys.stderr, flush=True)
