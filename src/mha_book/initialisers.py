"""How the parameters of a multi-head layer start: named initialisers."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Key

from mha_book._checks import check
from mha_book.parameters import MultiHeadParams

__all__ = ["identity_params", "init_multi_head", "normal", "xavier_uniform"]


def xavier_uniform(
    rng_key: Key[Array, ""], fan_in: int, fan_out: int, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "..."]:
    r"""Draw uniformly from $\pm\sqrt{6 / (\text{fan in} + \text{fan out})}$.

    The fans are those of the whole matrix, all heads together, as in the code of the paper that
    introduced the layer.

    Args:
        rng_key: PRNG key.
        fan_in: rows of the matrix.
        fan_out: columns of the matrix.
        shape: shape of the result.
        dtype: dtype of the result.

    Returns:
        Array of ``shape``.

    References:
        Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
        networks, 2010, equation 16.

    Example:
        >>> w = xavier_uniform(jax.random.key(0), 3, 3, (3, 3), jnp.float32)
        >>> bool((abs(w) <= 1.0).all())
        True
    """
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return jax.random.uniform(rng_key, shape, dtype, -limit, limit)


def normal(
    rng_key: Key[Array, ""], fan_in: int, fan_out: int, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "..."]:
    """Draw from a normal distribution of standard deviation 0.02, as BERT and GPT-2 do.

    Args:
        rng_key: PRNG key.
        fan_in: not used.
        fan_out: not used.
        shape: shape of the result.
        dtype: dtype of the result.

    Returns:
        Array of ``shape``.

    Example:
        >>> normal(jax.random.key(0), 3, 3, (3, 3), jnp.float32).shape
        (3, 3)
    """
    del fan_in, fan_out
    return 0.02 * jax.random.normal(rng_key, shape, dtype)


def init_multi_head(
    rng_key: Key[Array, ""],
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    use_bias: bool = False,
    initialiser: Callable[..., Array] = xavier_uniform,
    dtype: DTypeLike = jnp.float32,
) -> MultiHeadParams:
    """Return freshly drawn parameters; biases start at zero.

    Args:
        rng_key: PRNG key.
        d_model: ``D``.
        num_heads: ``N``.
        num_kv_heads: ``K``, a divisor of ``N``; None for ``N``.
        head_dim: ``H``; None for ``D / N``, which must then be whole.
        value_dim: ``C``; None for ``H``.
        use_bias: whether the four projections have biases.
        initialiser: :func:`xavier_uniform`, :func:`normal`, or a function of their signature.
        dtype: dtype of the parameters.

    Returns:
        The parameters.

    Raises:
        ValueError: a size is not a positive integer, ``N`` does not divide ``D`` although no
            ``head_dim`` is given, or ``K`` does not divide ``N``.

    Example:
        >>> init_multi_head(jax.random.key(0), 64, 8, num_kv_heads=2).w_k.shape
        (64, 2, 8)
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    for name, size in (
        ("d_model", d_model),
        ("num_heads", num_heads),
        ("num_kv_heads", num_kv_heads),
        ("head_dim", 1 if head_dim is None else head_dim),
        ("value_dim", 1 if value_dim is None else value_dim),
    ):
        check(isinstance(size, int) and size > 0, name, "a positive integer", repr(size))
    if head_dim is None:
        what = f"a divisor of d_model = {d_model}, since head_dim is not given"
        check(d_model % num_heads == 0, "num_heads", what, num_heads)
        head_dim = d_model // num_heads
    what = f"a divisor of num_heads = {num_heads}"
    check(num_heads % num_kv_heads == 0, "num_kv_heads", what, num_kv_heads)
    value_dim = head_dim if value_dim is None else value_dim
    keys = jax.random.split(rng_key, 4)
    into = [(num_heads, head_dim), (num_kv_heads, head_dim), (num_kv_heads, value_dim)]
    w_q, w_k, w_v = (
        initialiser(key, d_model, heads * width, (d_model, heads, width), dtype)
        for key, (heads, width) in zip(keys[:3], into, strict=True)
    )
    out = (num_heads, value_dim, d_model)
    w_o = initialiser(keys[3], num_heads * value_dim, d_model, out, dtype)
    if not use_bias:
        return MultiHeadParams(w_q, w_k, w_v, w_o)
    b_q, b_k, b_v = (jnp.zeros(shape, dtype) for shape in into)
    return MultiHeadParams(w_q, w_k, w_v, w_o, b_q, b_k, b_v, jnp.zeros((d_model,), dtype))


def identity_params(
    d_model: int, num_heads: int, dtype: DTypeLike = jnp.float32
) -> MultiHeadParams:
    """Return parameters whose four projections are the identity.

    The layer then splits queries, keys and values, attends, and combines: multi-head attention
    without projections.

    Args:
        d_model: ``D``.
        num_heads: ``N``, a divisor of ``D``.
        dtype: dtype of the parameters.

    Returns:
        The parameters.

    Raises:
        ValueError: ``num_heads`` does not divide ``d_model``.

    Example:
        >>> identity_params(4, 2).w_q.shape
        (4, 2, 2)
    """
    is_divisor = isinstance(num_heads, int) and num_heads > 0 and d_model % num_heads == 0
    check(is_divisor, "num_heads", f"a positive divisor of d_model = {d_model}", repr(num_heads))
    identity = jnp.eye(d_model, dtype=dtype)
    into = jnp.reshape(identity, (d_model, num_heads, d_model // num_heads))
    out = jnp.reshape(identity, (num_heads, d_model // num_heads, d_model))
    return MultiHeadParams(into, into, into, out)
