r"""Rotary position embedding: turn queries and keys by angles that grow with their position.

The score of a rotated query at position $m$ and a rotated key at position $n$ depends on the
positions through $m - n$ alone. Heads stand before positions, ``(…, T, H)``.
"""

import jax.numpy as jnp
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
    positions: Int[Array, "*batch T"], head_dim: int, theta: float = 10_000.0
) -> Float[Array, "*batch T pairs"]:
    r"""Return the angle of every pair of features at every position, $p\,\theta^{-2a/H}$.

    Args:
        positions: ``(…, T)``, integers.
        head_dim: ``H``, even.
        theta: base of the wavelengths, which run from $2\pi$ to nearly $2\pi\theta$ positions.

    Returns:
        ``(…, T, H/2)``, radians, float32 whatever the positions and the base are.

    Raises:
        ValueError: ``positions`` are not integers, ``head_dim`` is not a positive even integer, or
            ``theta`` is not positive.

    Example:
        >>> rotary_angles(jnp.arange(3), 2).tolist()
        [[0.0], [1.0], [2.0]]
    """
    check_integers(positions, "positions")
    check_size(head_dim, "head_dim", 1, "a positive even integer")
    check(head_dim % 2 == 0, "head_dim", "a positive even integer", repr(head_dim))
    check_number(theta, "theta", "a positive number", positive=True)
    base, width = jnp.asarray(theta, jnp.float32), int(head_dim)
    frequencies = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    frequencies = jnp.reshape(frequencies, (1,) * positions.ndim + (-1,))
    return positions[..., None].astype(jnp.float32) * frequencies


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

    Raises:
        ValueError: ``H`` is odd, or the rank, dtype or axes of ``angles`` do not fit.

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
    check_rank(x, "x", "(…, T, H)", 2)
    check_floating(x, "x")
    check(x.shape[-1] % 2 == 0, "x", "an even last axis H", f"shape {x.shape}")
    check_rank(angles, "angles", "(…, T, H/2)", 2)
    check_floating(angles, "angles")
    _check_leading(tuple(angles.shape[:-2]), tuple(x.shape[:-2]), angles.shape)
    check_axis(angles, "angles", -1, "(…, T, H/2)", x.shape[-1] // 2, "half of x")
    check_axis(angles, "angles", -2, "(…, T, H/2)", x.shape[-2], "x")
    widened = x.astype(accumulator_dtype(x.dtype))
    angles = jnp.reshape(angles, (1,) * (x.ndim - angles.ndim) + angles.shape).astype(widened.dtype)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    even, odd = widened[..., 0::2], widened[..., 1::2]
    turned = jnp.stack((even * cosine - odd * sine, even * sine + odd * cosine), axis=-1)
    return jnp.reshape(turned, x.shape).astype(x.dtype)


def _check_leading(axes: tuple[int, ...], of_x: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise unless angles have no leading axes, or all of ``x``, each equal or 1."""
    full = len(axes) == len(of_x) and all(a in (1, b) for a, b in zip(axes, of_x, strict=True))
    if axes and not full:
        hint = ": write angles[:, None] if these are (B, T, H/2)" if len(of_x) == 2 else ""
        hint = hint if len(axes) == 1 else ""
        what = f"axes (T, H/2), or leading axes {of_x} as in x, each equal or 1{hint}"
        check(False, "angles", what, f"shape {tuple(shape)}")
