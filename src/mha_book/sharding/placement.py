r"""Which positions each device of a ring holds: load balancing of context parallelism.

Under a causal mask the query at position $i$ has $i + 1$ keys. Devices that hold one stretch of the
sequence each, *contiguous*, then have unequal work: the last sees nearly twice the mean, and the
others wait for it. *Striped* placement deals the positions out one by one; *zigzag* cuts the
sequence into $2P$ stretches and gives device $d$ the stretches $d$ and $2P - 1 - d$. Either way all
devices have nearly the same work in every step.

A device holds some *runs* of positions, each an arithmetic sequence of the same stride and length.
So the pairs that a band $a \le j - i \le b$ leaves visible between a run of queries and a run of
keys are again a band of their places in the runs, and everything here is exact arithmetic.

References:
    Brandon et al., Striped Attention, 2023 (arXiv:2311.09431); the zigzag order: Zhu,
    ring-flash-attention, 2024, and Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from mha_book._checks import check, check_size, check_type

__all__ = ["Placement", "balance", "make_placement", "place", "restore"]

PLACEMENTS = ("contiguous", "striped", "zigzag")
"""The names that :func:`make_placement` knows."""


class Placement(NamedTuple):
    """Which positions each device holds, in the order in which they lie there.

    Args:
        name: "contiguous", "striped", "zigzag", or one of your own.
        starts: ``(devices, runs)``, the first position of each run of each device.
        stride: between two positions of a run.
        run_length: positions of a run.
    """

    name: str
    starts: tuple[tuple[int, ...], ...]
    stride: int
    run_length: int

    @property
    def devices(self) -> int:
        """``P``."""
        return len(self.starts)

    @property
    def num_runs(self) -> int:
        """Runs of each device."""
        return len(self.starts[0])

    @property
    def length(self) -> int:
        """``T``, the positions of all devices."""
        return self.devices * self.num_runs * self.run_length

    @property
    def positions(self) -> np.ndarray:
        """``(devices, T / devices)``, the positions of each device."""
        starts = np.asarray(self.starts, np.int64)[:, :, None]
        runs = starts + self.stride * np.arange(self.run_length)
        return runs.reshape(self.devices, -1)

    def describe(self, device: int) -> str:
        """Return in words which positions a device holds: first and last of each of its runs."""
        run, stride = self.run_length, self.stride
        by = f" by {stride}" if stride > 1 else ""
        ends = [(start, start + stride * (run - 1)) for start in self.starts[device]]
        return "positions " + " ".join(f"{first}-{last}{by}" for first, last in ends)


def make_placement(name: str, length: int, devices: int) -> Placement:
    """Return one of the three placements.

    Args:
        name: one of :data:`PLACEMENTS`.
        length: ``T``, a multiple of ``devices``, for "zigzag" of twice that.
        devices: ``P``.

    Example:
        >>> make_placement("zigzag", 8, 2).positions.tolist()
        [[0, 1, 6, 7], [2, 3, 4, 5]]
        >>> make_placement("striped", 8, 2).positions.tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    what = f"one of {', '.join(PLACEMENTS)}, or a Placement"
    check(isinstance(name, str) and name in PLACEMENTS, "placement", what, repr(name))
    check_size(length, "length")
    check_size(devices, "devices")
    parts = 2 * devices if name == "zigzag" else devices
    why = "two stretches for each device" if name == "zigzag" else "the number of devices"
    what = f"a multiple of {parts}, {why} ({name}); fill it up to {-(-length // parts) * parts}"
    check(length % parts == 0, "length", what, length)
    run = length // parts
    if name == "striped":
        return Placement(name, tuple((d,) for d in range(devices)), devices, run)
    if name == "contiguous":
        return Placement(name, tuple((d * run,) for d in range(devices)), 1, run)
    ends = tuple((d * run, (parts - 1 - d) * run) for d in range(devices))
    return Placement(name, ends, 1, run)


def as_placement(placement: str | Placement, length: int, devices: int) -> Placement:
    """Return a placement from a name, or the one given after checking that it fits."""
    if isinstance(placement, str):
        return make_placement(placement, length, devices)
    check_type(placement, "placement", Placement, "or one of " + ", ".join(PLACEMENTS))
    got = f"{placement.devices} devices and {placement.length} positions"
    fits = (placement.devices, placement.length) == (devices, length)
    check(fits, "placement", f"one of {devices} devices and {length} positions", got)
    every = np.sort(placement.positions, axis=None)
    what = f"each position from 0 to {length - 1} once"
    check(bool((every == np.arange(length)).all()), "placement", what, placement.name)
    return placement


def place(x: Shaped[Array, "..."], placement: Placement, axis: int = -2) -> Array:
    """Bring positions from their natural order into that of a placement.

    Args:
        x: an array with an axis of ``T`` positions.
        placement: which device is to hold what.
        axis: the axis of the positions.

    Returns:
        The array, divided as ``x`` is; divided evenly along ``axis``, each device has its
        positions.

    Example:
        >>> x = jnp.arange(8.0)[:, None]
        >>> place(x, make_placement("zigzag", 8, 2))[:, 0].tolist()
        [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 4.0, 5.0]
    """
    return _reordered(x, placement, axis, is_back=False)


def restore(x: Shaped[Array, "..."], placement: Placement, axis: int = -2) -> Array:
    """Bring positions back into their natural order: the inverse of :func:`place`.

    The arguments are those of :func:`place`; the result is divided as ``x`` is.

    Example:
        >>> striped = make_placement("striped", 6, 2)
        >>> restore(place(jnp.arange(6.0), striped, 0), striped, 0).tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    return _reordered(x, placement, axis, is_back=True)


def _reordered(x: Array, placement: Placement, axis: int, is_back: bool) -> Array:
    check_type(placement, "placement", Placement, "as make_placement gives it")
    what = f"axis {axis} of {placement.length} positions, as in placement"
    fits = -x.ndim <= axis < x.ndim and x.shape[axis] == placement.length
    check(fits, "x", what, f"shape {x.shape}")
    order = placement.positions.reshape(-1)
    return reordered(x, axis, np.argsort(order) if is_back else order)


def reordered(x: Array, axis: int, order: np.ndarray) -> Array:
    """Return ``x`` with the entries of an axis in another order, divided as ``x`` is."""
    places = (*[slice(None)] * (axis % x.ndim), jnp.asarray(order, jnp.int32))
    sharding = jax.typeof(x).sharding
    # Of an array whose type says how it is divided, the result is divided alike.
    return x.at[places].get(out_sharding=sharding if any(sharding.spec) else None)


def local_bounds(
    placement: Placement, shift: int, lower: int | None, upper: int | None
) -> np.ndarray:
    r"""Return the bands between the runs of a device and those ``shift`` devices before it.

    Of a query $q_0 + s\,i$ and a key $k_0 + s\,j$ the band $a \le k - q \le b$ leaves
    $\lceil (q_0 - k_0 + a)/s \rceil \le j - i \le \lfloor (q_0 - k_0 + b)/s \rfloor$.

    They are ``(devices, runs of queries, runs of keys, 2)``, the bounds of ``j - i`` cut to those
    that there are, ``1 - run_length`` and ``run_length - 1``; the first above the second where
    nothing is visible. None for no bound.
    """
    starts, stride = np.asarray(placement.starts, np.int64), placement.stride
    most = placement.run_length - 1
    between = starts[:, :, None] - np.roll(starts, shift, axis=0)[:, None, :]  # q₀ - k₀
    low = np.full_like(between, -most) if lower is None else -((-(between + lower)) // stride)
    high = np.full_like(between, most) if upper is None else (between + upper) // stride
    bounds = np.stack([np.maximum(low, -most), np.minimum(high, most)], axis=-1)
    bounds[bounds[..., 0] > bounds[..., 1]] = (1, 0)
    return bounds


class Balance(NamedTuple):
    """The visible pairs of a query and a key of each device in each step, ``(steps, devices)``."""

    pairs: np.ndarray

    @property
    def total(self) -> int:
        """All visible pairs."""
        return int(self.pairs.sum())

    @property
    def by_device(self) -> np.ndarray:
        """``(devices,)``, the pairs of each device in all steps."""
        return np.asarray(self.pairs.sum(axis=0))

    @property
    def step_ratio(self) -> float:
        """The pairs of the device with most of them in each step, over the mean: 1 is even."""
        return float(self.pairs.max(axis=1).sum() * self.pairs.shape[1] / max(self.total, 1))


def balance(placement: Placement, lower: int | None = None, upper: int | None = None) -> Balance:
    """Return the visible pairs of each device in each step of a ring, exactly.

    Args:
        placement: which positions each device holds.
        lower: the least ``j - i`` that is visible, as in :class:`~mha_book.masks.Mask`; a window
            of ``w`` keys before the query's own has ``-w``. None for no bound.
        upper: the greatest; a causal mask has 0. None for no bound.

    Returns:
        The pairs; in step ``s`` a device has the keys of the one ``s`` before it.

    Example:
        >>> for name in PLACEMENTS:
        ...     even = balance(make_placement(name, 1024, 8), upper=0)
        ...     print(name, round(even.step_ratio, 3))
        contiguous 1.874
        striped 1.007
        zigzag 1.0
    """
    check_type(placement, "placement", Placement, "as make_placement gives it")
    steps = []
    for shift in range(placement.devices):
        bounds = local_bounds(placement, shift, lower, upper)
        counts = _pairs_up_to(bounds[..., 1], placement.run_length)
        counts = counts - _pairs_up_to(bounds[..., 0] - 1, placement.run_length)
        steps.append(counts.sum(axis=(1, 2)))
    return Balance(np.stack(steps))


def _pairs_up_to(bound: np.ndarray, length: int) -> np.ndarray:
    """Return how many pairs of two runs have ``j - i <= bound``, from ``-length`` on."""
    below = np.clip(bound, -length, 0) + length  # diagonals up to the main one
    above = np.clip(bound, 0, length - 1)
    pairs: np.ndarray = below * (below + 1) // 2 + above * (2 * length - above - 1) // 2
    return pairs
