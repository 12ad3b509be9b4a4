r"""Rotary position embedding: turn queries and keys by angles that grow with their position.

The score of a rotated query at position $m$ and a rotated key at position $n$ depends on the
positions through $m - n$ alone. Heads stand before positions, ``(…, T, H)``.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mha_book._checks import (
    accumulator_dtype,
    check,
    check_axis,
    check_floating,
    check_integers,
    check_number,
    check_rank,
    check_size,
)

__all__ = ["rotary_angles", "rotate"]


def rotary_angles(
    positions: Int[Array, "*batch T"],
    head_dim: int,
    theta: float = 10_000.0,
    *,
    factor: float = 1.0,
) -> Float[Array, "*batch T pairs"]:
    r"""Return the angle of every pair of features at every position, $p\,\theta^{-2a/H}$.

    Float32 cannot hold a large angle: near $10^6$ its steps are 1/16 radian. So an angle of more
    than 1024 radians comes without its whole turns, between $-\pi$ and $\pi$.

    Args:
        positions: ``(…, T)``, integers.
        head_dim: ``H``, even.
        theta: base of the wavelengths, which run from $2\pi$ to nearly $2\pi\theta$ positions.
            One that is traced is known in float32 alone, and its angles are plain products.
        factor: divides every angle: position interpolation. Don't divide the angles themselves,
            whose whole turns may be gone.

    Returns:
        ``(…, T, H/2)``, radians, float32 whatever the positions and the base are.

    References:
        Chen et al., Extending Context Window of Large Language Models via Positional Interpolation,
        2023.

    Example:
        >>> rotary_angles(jnp.arange(3), 2).tolist()
        [[0.0], [1.0], [2.0]]
        >>> rotary_angles(jnp.arange(3), 2, factor=4.0).tolist()
        [[0.0], [0.25], [0.5]]
    """
    check_integers(positions, "positions")
    check_size(head_dim, "head_dim", 1, "a positive even integer")
    check(head_dim % 2 == 0, "head_dim", "a positive even integer", repr(head_dim))
    check_number(theta, "theta", "a positive number", positive=True)
    check_number(factor, "factor", "a positive number", positive=True)
    exponents = -np.arange(0, int(head_dim), 2) / int(head_dim)
    positions = jnp.asarray(positions)[..., None]
    axes = (1,) * (positions.ndim - 1) + (-1,)
    if any(isinstance(x, jax.core.Tracer) for x in (theta, factor)):
        base, divisor = (jnp.asarray(x, jnp.float32) for x in (theta, factor))
        speeds = jnp.reshape(base ** jnp.asarray(exponents, jnp.float32) / divisor, axes)
        return positions.astype(jnp.float32) * speeds
    exact = np.reshape(float(theta) ** exponents / float(factor), axes)
    plain = positions.astype(jnp.float32) * jnp.asarray(exact, jnp.float32)
    return jnp.where(jnp.abs(plain) < 1024, plain, _reduced_angles(positions, exact))


def _reduced_angles(positions: Array, speeds: np.ndarray) -> Array:
    """Return ``positions * speeds`` less whole turns: the fractions of turns are 64-bit integers.

    Their products with the positions overflow, which is what leaves the whole turns out. They are
    made of 32-bit ones, since JAX has no others by default.
    """
    turns = np.floor(np.mod(speeds / (2 * np.pi), 1.0) * 2.0**64).astype(np.uint64)
    high, low = (jnp.asarray(x, jnp.uint32) for x in (turns >> 32, turns & (2**32 - 1)))
    is_wide = positions.dtype.itemsize == 8
    above = positions >> 32 if is_wide else jnp.where(positions < 0, -1, 0)  # two's complement
    below, above = positions.astype(jnp.uint32), above.astype(jnp.uint32)
    half = jnp.uint32(0xFFFF)
    carried = (below >> 16) * (low >> 16) + ((below >> 16) * (low & half) >> 16)
    carried = carried + ((below & half) * (low >> 16) >> 16)  # the high half of below * low
    fraction = below * high + above * low + carried  # in turns of 2^-32
    signed = jax.lax.bitcast_convert_type(fraction, jnp.int32)
    return jnp.multiply(signed.astype(jnp.float32), jnp.float32(2 * np.pi / 2**32))


def rotate(
    x: Float[Array, "*batch T H"], angles: Float[Array, "*angle_batch T pairs"]
) -> Float[Array, "*batch T H"]:
    r"""Turn each pair of adjacent features $(x_{2a}, x_{2a+1})$ by its angle.

    Args:
        x: ``(…, T, H)``, queries or keys.
        angles: ``(T, H/2)`` from :func:`rotary_angles`, or with all axes of ``x``, each leading
            one equal or 1, for example ``(B, 1, T, H/2)`` for ``x`` of ``(B, N, T, H)``. Angles
            ``(B, T, H/2)`` of sequences need the axis of heads, ``angles[:, None]``.

    Returns:
        ``(…, T, H)`` in the dtype of ``x``; the rotation runs in float32 at least.

    Differs from:
        Implementations that pair feature ``a`` with ``a + H/2`` (GPT-NeoX, the Hugging Face form of
        Llama): the same up to a fixed permutation of the columns of the projections.

    References:
        Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.

    Example:
        >>> x = jnp.array([[1.0, 0.0]])
        >>> quarter_turn = jnp.array([[jnp.pi / 2]])
        >>> rotate(x, quarter_turn).round(3).tolist()
        [[-0.0, 1.0]]
    """
    if not (  # the usual case, in one look
        isinstance(x, jax.Array)
        and isinstance(angles, jax.Array)
        and jnp.issubdtype(x.dtype, jnp.floating)
        and jnp.issubdtype(angles.dtype, jnp.floating)
        and x.ndim > 1
        and angles.shape == (x.shape[-2], x.shape[-1] / 2)
    ):
        _check_rotation(x, angles)
    widened = x.astype(accumulator_dtype(x.dtype))
    angles = jnp.reshape(angles, (1,) * (x.ndim - angles.ndim) + angles.shape).astype(widened.dtype)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    even, odd = widened[..., 0::2], widened[..., 1::2]
    turned = jnp.stack((even * cosine - odd * sine, even * sine + odd * cosine), axis=-1)
    return jnp.reshape(turned, x.shape).astype(x.dtype)


def _check_rotation(x: Array, angles: Array) -> None:
    """Raise unless angles fit, without leading axes or with all of ``x``, each equal or 1."""
    check_rank(x, "x", "(…, T, H)", 2)
    check_floating(x, "x")
    check(x.shape[-1] % 2 == 0, "x", "an even last axis H", f"shape {x.shape}")
    check_rank(angles, "angles", "(…, T, H/2)", 2)
    check_floating(angles, "angles")
    axes, of_x = tuple(angles.shape[:-2]), tuple(x.shape[:-2])
    full = len(axes) == len(of_x) and all(a in (1, b) for a, b in zip(axes, of_x, strict=True))
    if axes and not full:
        is_batch = len(of_x) == 2 and len(axes) == 1
        hint = ": write angles[:, None] if these are (B, T, H/2)" if is_batch else ""
        what = f"axes (T, H/2), or leading axes {of_x} as in x, each equal or 1{hint}"
        check(False, "angles", what, f"shape {tuple(angles.shape)}")
    check_axis(angles, "angles", -1, "(…, T, H/2)", x.shape[-1] // 2, "half of x")
    check_axis(angles, "angles", -2, "(…, T, H/2)", x.shape[-2], "x")
