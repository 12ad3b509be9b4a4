r"""Ring attention, a form of context parallelism: queries stay, keys and values travel.

Of a sequence too long for one device, device $d$ of $P$ holds $T/P$ positions. In step $s$ it has
the keys and values of device $d - s$ and computes the output $O_s$ and log-sum-exp $\lambda_s$ of
its queries over these; what it knows after all steps is
$O = \sum_s e^{\lambda_s - \lambda} O_s$ with $\lambda = \log \sum_s e^{\lambda_s}$, joined part by
part as in :mod:`~mha_book.attention.online_softmax`. Nothing of the size $T \times T$, and no more
than two blocks of keys and values, is ever on one device.

Backward, a second ring. Of a part, $A^{ij} = e^{S^{ij} - \lambda^i}$ needs the log-sum-exp of all
keys alone, which stayed with the query; so keys and values travel once more, and with them the sums
of their gradients, which arrive at home when every device has added its part.

Which positions a device holds is its :class:`~mha_book.sharding.placement.Placement`. Between a run
of queries and a run of keys the mask is a band again, known before the program is compiled: a step
in which nobody sees anything is not taken (a window makes a short ring), and a device for which all
is hidden computes nothing in that step.

Communication overlaps compute: the keys of the next step are on their way while those of the
present one are used. Each step is one call of :func:`~mha_book.attention.dispatch.attend`.

References:
    Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers, 2023 (arXiv:2310.01889).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mha_book._checks import accumulator_dtype, check, check_scale, check_size
from mha_book.attention import blocks, gradient
from mha_book.attention.blockwise import blockwise_gradients
from mha_book.attention.derivatives import with_gradient_by_hand
from mha_book.attention.dispatch import attend_with_lse
from mha_book.attention.online_softmax import SoftmaxState, finalize, merge
from mha_book.attention.operands import Operands, prepare
from mha_book.attention.platform import platform_of
from mha_book.attention.reference import scores
from mha_book.masks import Mask, as_mask, zero_unattended
from mha_book.sharding.mesh import MeshAxes, divide_operands, mask_specs, on_mesh, own_kv_heads
from mha_book.sharding.placement import Placement, as_placement, local_bounds, reordered

__all__ = ["ring_attention"]

HIDDEN = (1, 0)  # a band of nothing
Arrays = tuple[Array, ...]


class RingStep(NamedTuple):
    """One step of a ring: keys come from ``shift`` devices before, ``bounds`` say what is seen.

    The bounds are those of :func:`~mha_book.sharding.placement.local_bounds`.
    """

    shift: int
    bounds: np.ndarray


def ring_schedule(
    placement: Placement, lower: int | None = None, upper: int | None = None
) -> list[RingStep]:
    """Return the steps of a ring; those in which no device sees anything are left out.

    ``lower`` and ``upper`` bound the visible ``j - i``; None for no bound. The first step has each
    device's own keys.
    """
    steps = []
    for shift in range(placement.devices):
        bounds = local_bounds(placement, shift, lower, upper)
        if shift == 0 or (bounds[..., 0] <= bounds[..., 1]).any():
            steps.append(RingStep(shift, bounds))
    return steps


class RingCall(NamedTuple):
    """What a ring is to compute, without the arrays."""

    axis_name: str
    placement: Any  # a Placement, or until it is checked a name
    scale: Any
    implementation: str | None
    unroll: int | None
    lower: int | None = None
    upper: int | None = None


def ring_attention(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    axes: MeshAxes,
    mesh: Any = None,
    placement: str | Placement = "contiguous",
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    implementation: str | None = None,
    unroll: int | None = None,
) -> Float[Array, "*batch T C"]:
    r"""Attend with the positions divided over a ring of devices: ring attention.

    What :func:`~mha_book.attention.dispatch.attend` gives on one device, for sequences of which one
    device holds a part. Sequences and heads may be divided as well, over other axes of the mesh.

    Args:
        query: ``(…, N, T, H)``, its positions in the order of ``placement``.
        key: ``(…, K, T, H)``, likewise. Where the heads are divided, ``K`` is a multiple of the
            number of devices, or a divisor: then each gets the one that its query heads read.
        value: ``(…, K, T, C)``, likewise.
        axes: which axes of the mesh divide what; ``axes.sequence`` is the ring.
        mesh: the mesh; None for the one that is set.
        placement: "contiguous" for positions in their natural order, "striped" or "zigzag" for
            arrays that :func:`~mha_book.sharding.placement.place` brought into that order, or a
            placement of your own.
        mask: a :class:`~mha_book.masks.Mask` with bounds that are integers, or an array
            ``(…, N, T, T)``. It speaks of positions in their natural order, whatever the placement
            is; of an array each device then holds the rows of its queries.
        is_causal: whether position ``i`` may attend to positions ``j <= i`` only.
        scale: factor of the scores, a number; None means ``1 / sqrt(H)``.
        implementation: passed to :func:`~mha_book.attention.dispatch.attend` in each step; one that
            has a log-sum-exp.
        unroll: None to write out all steps in the program, so that a compiler can send the keys of
            one step during the arithmetic of another; a number for a loop with so many steps
            written out in its body: a small program for a long ring.

    Returns:
        ``(…, N, T, C)`` in the order of ``placement``, laid out as the query is.

    Example:
        >>> mesh = jax.make_mesh((1,), ("ring",))  # a ring of one device
        >>> x = jnp.ones((2, 8, 4))
        >>> ring_attention(x, x, x, mesh=mesh, axes=MeshAxes(sequence="ring"), is_causal=True).shape
        (2, 8, 4)
    """
    layout = divide_operands(
        query, key, value, axes=axes, mesh=mesh, sequence="the axis of the mesh that is the ring"
    )
    length, devices = query.shape[-2], layout.sizes.sequence
    check(key.shape[-2] == length, "key", f"axis -2 of {length}, as query has", key.shape[-2])
    given = as_mask(mask, is_causal, (*query.shape[:-1], length))
    number = 1.0 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    call = RingCall(str(axes.sequence), placement, number, implementation, unroll)
    call, data = checked_call(call, given, length, devices)
    spec, kv_spec = layout.query_spec, layout.kv_spec

    def on_device(query: Array, key: Array, value: Array, data: Mask) -> Array:
        key, value = own_kv_heads(layout.copies, axes.heads, key, value)
        return attend_over_ring(call, query, key, value, data)

    in_specs = spec, kv_spec, kv_spec, mask_specs(data, axes.batch, axes.heads, axes.sequence)
    output: Array = on_mesh(on_device, layout.mesh, in_specs, spec)(query, key, value, data)
    return output


def checked_call(
    call: RingCall, mask: Mask | None, length: int, devices: int
) -> tuple[RingCall, Mask]:
    """Return what a ring is to compute, checked, and the mask's arrays in the ring's order."""
    ring = as_placement(call.placement, length, devices)
    what = "a number: a ring has no gradient of an array"
    is_array = isinstance(call.scale, (jax.Array, np.ndarray))
    check(not is_array, "scale", what, repr(type(call.scale)))
    check_scale(call.scale)
    if call.unroll is not None:
        check_size(call.unroll, "unroll", 1, "None, or a positive integer")
    mask = Mask() if mask is None else mask
    for name in ("lower", "upper"):
        bound = getattr(mask, name)
        what = "an integer: which steps a ring takes is part of the program"
        check(bound is None or isinstance(bound, int), f"mask.{name}", what, repr(type(bound)))
    if not mask.kinds:  # whoever sees everything sees it in any order
        ring = as_placement("contiguous", length, devices)
    call = call._replace(placement=ring, lower=mask.lower, upper=mask.upper)
    order = ring.positions.reshape(-1)
    data = dataclasses.replace(mask, lower=None, upper=None)
    if (order != np.arange(length)).any():
        data = jax.tree_util.tree_map_with_path(functools.partial(_in_order, order), data)
    return call, data


def _in_order(order: np.ndarray, path: Any, x: Any) -> Array:
    """Bring the axes of positions that an array of a mask has from natural order into another."""
    axes = {"array": (-2, -1), "query_segments": (-1,), "key_segments": (-1,)}
    for axis in axes.get(path[0].name, ()):
        x = x if x.shape[axis] == 1 else reordered(jnp.asarray(x), axis, order)
    return jnp.asarray(x)


def attend_over_ring(call: RingCall, query: Array, key: Array, value: Array, data: Mask) -> Array:
    """Return the output of this device's queries; inside ``shard_map``."""

    def forward(*arguments: Any) -> tuple[Array, Any]:
        output, lse = _forward(call, *arguments)
        return output, (*arguments, output, lse)

    by_hand = with_gradient_by_hand(
        forward,
        lambda kept, d_output: (*_backward(call, kept, d_output), None),
        lambda *arguments: _forward(call, *arguments)[0],
    )
    return by_hand(query, key, value, data)


def _forward(
    call: RingCall, query: Array, key: Array, value: Array, data: Mask
) -> tuple[Array, Array]:
    runs = call.placement.num_runs
    q = _split(query, runs, -2)
    zeros = jnp.zeros((*q[0].shape[:-1], value.shape[-1]), query.dtype)
    nothing = zeros, jnp.full(zeros.shape[:-1], -jnp.inf, accumulator_dtype(query.dtype))

    def visit(place: _Place, known: Any, arrived: Arrays) -> tuple[Any, Arrays]:
        """Join what each run of queries knows with what it sees of these keys."""
        keys, values = (_split(x, runs, -2) for x in arrived)
        known = list(known)

        def of_runs(a: int, b: int, mask: Mask | None) -> Any:
            return attend_with_lse(
                q[a], keys[b], values[b], mask=mask, scale=call.scale, layout="NTH",
                implementation=call.implementation,
            )  # fmt: skip

        for a, _, part in _parts(call, data, place, of_runs, nothing):
            known[a] = merge(known[a], _as_state(*part))
        return known, ()

    start = [_as_state(*nothing) for _ in q]
    known, _ = _around(call, visit, start, (key, value), ())
    outputs, sums = zip(*(finalize(state) for state in known), strict=True)
    return jnp.concatenate(outputs, axis=-2).astype(query.dtype), jnp.concatenate(sums, axis=-1)


def _as_state(output: Array, lse: Array) -> SoftmaxState:
    """Return what attention over some keys says of their softmax: a sum of 1, or of no key 0."""
    lse = lse[..., None]
    total = jnp.where(jnp.isneginf(lse), jnp.zeros((), lse.dtype), jnp.ones((), lse.dtype))
    return SoftmaxState(lse, total, output.astype(lse.dtype))


def _backward(call: RingCall, kept: Any, d_output: Array) -> Arrays:
    query, key, value, data, output, lse = kept
    # The keys go around once more. A compiler that sees the same sends in both passes would keep
    # what came in the first, the keys of all devices, until the second.
    key, value = (gradient.not_before(d_output, x) for x in (key, value))
    runs, dtype = call.placement.num_runs, accumulator_dtype(query.dtype)
    q, out, d_out = (_split(x, runs, -2) for x in (query, output, d_output))
    row_lse = _split(lse, runs, -1)
    nothing = tuple(jnp.zeros_like(_split(x, runs, -2)[0]) for x in (query, key, value))

    def visit(place: _Place, d_query: Any, arrived: Arrays) -> tuple[Any, Arrays]:
        """Return the gradients of the queries so far, and what these keys and values get here."""
        keys, values = (_split(x, runs, -2) for x in arrived)
        d_query = list(d_query)
        d_arrived = [[jnp.zeros(x.shape, dtype) for x in split] for split in (keys, values)]

        def of_runs(a: int, b: int, mask: Mask | None) -> Any:
            operands = prepare(q[a], keys[b], values[b], mask=mask, scale=call.scale)
            return _gradients(operands, out[a], row_lse[a], d_out[a], call.implementation)

        for a, b, part in _parts(call, data, place, of_runs, nothing):
            d_q, d_k, d_v = (x.astype(dtype) for x in part)
            d_query[a] = d_query[a] + d_q
            d_arrived[0][b] = d_arrived[0][b] + d_k
            d_arrived[1][b] = d_arrived[1][b] + d_v
        return d_query, tuple(jnp.concatenate(x, axis=-2) for x in d_arrived)

    start = [jnp.zeros(x.shape, dtype) for x in q]
    sums = tuple(jnp.zeros(x.shape, dtype) for x in (key, value))
    d_query, (d_key, d_value) = _around(call, visit, start, (key, value), sums)
    found = jnp.concatenate(d_query, axis=-2), d_key, d_value
    return tuple(d.astype(x.dtype) for d, x in zip(found, (query, key, value), strict=True))


def _gradients(
    operands: Operands, output: Array, lse: Array, d_output: Array, implementation: str | None
) -> Arrays:
    """Return what some keys add to the gradients, from the output and log-sum-exp of all keys.

    By blocks where these are named, or where no name is given and there are many keys.
    """
    by_blocks = implementation == "blockwise"
    if by_blocks or (implementation is None and operands.key.shape[-2] > blocks.KEYS):
        platform, _ = platform_of(*operands[:3])
        nothing = jnp.zeros_like(lse)
        return blockwise_gradients(operands, output, lse, d_output, nothing, platform=platform)
    visible = operands.visible()
    query, key, value = zero_unattended(*operands[:3], visible)
    of_pairs = scores(gradient.not_before(d_output, query), key, None, operands.scale)
    of_pairs = of_pairs if visible is None else jnp.where(visible, of_pairs, -jnp.inf)
    empty = jnp.isneginf(lse)
    weights = jnp.exp(of_pairs - jnp.where(empty, 0.0, lse)[..., None])  # of some of the row's keys
    return gradient.attention_vjp(
        query, key, value, weights, output.astype(lse.dtype), d_output,
        empty=empty, scale=operands.scale,
    )[:3]  # fmt: skip


class _Place(NamedTuple):
    """Where in a ring a device is: of some steps in a loop that with a number, 0 or traced."""

    steps: Sequence[RingStep]
    number: Any
    shift: Any


def _around(
    call: RingCall,
    visit: Callable[[_Place, Any, Arrays], tuple[Any, Arrays]],
    known: Any,
    arrived: Arrays,
    sums: Arrays,
) -> tuple[Any, Arrays]:
    """Go once around the ring with keys and values that have ``arrived``, first a device's own.

    ``visit`` takes a place, what the device knows and the keys and values that are there, and
    returns what it knows then and what to add to the sums of these keys and values. The ``sums``
    travel with them and come home at the end; they may be empty.
    """
    steps = ring_schedule(call.placement, call.lower, call.upper)
    shifts = [step.shift for step in steps]
    ahead = [after - before for before, after in itertools.pairwise(shifts)]

    def take(place: _Place, distance: int, state: Any) -> Any:
        known, arrived, sums = state
        following = _send(call, arrived, distance)  # on its way while the rest is computed
        known, parts = visit(place, known, arrived)
        sums = tuple(x + part for x, part in zip(sums, parts, strict=True))
        return known, following, _send(call, sums, distance)

    state = (known, arrived, sums)
    first, number = 0, len(steps)
    if call.unroll is not None and len(steps) > 3 and set(ahead) == {1}:
        # The first step, whose mask is another, and the last, which sends nothing on, stand alone.
        state = take(_Place(steps[:1], 0, 0), 1, state)
        middle = steps[1:-1]

        def body(state: Any, n: Array) -> tuple[Any, None]:
            return take(_Place(middle, n, n + 1), 1, state), None

        state, _ = jax.lax.scan(body, state, jnp.arange(len(middle)), unroll=call.unroll)
        first = number - 1
    for step, distance in zip(steps[first:], [*ahead, 0][first:], strict=True):
        state = take(_Place([step], 0, step.shift), distance, state)
    known, _, sums = state
    return known, _send(call, sums, -shifts[-1])


def _send(call: RingCall, arrays: Arrays, distance: int) -> Arrays:
    """Send arrays ``distance`` devices on."""
    devices = call.placement.devices
    if distance % devices == 0:
        return arrays
    pairs = [(d, (d + distance) % devices) for d in range(devices)]
    return tuple(jax.lax.ppermute(x, call.axis_name, pairs) for x in arrays)


def _parts(
    call: RingCall,
    data: Mask,
    place: _Place,
    of_runs: Callable[[int, int, Mask | None], Any],
    nothing: Any,
) -> Any:
    """Yield the numbers of a run of queries and a run of keys, and what the one sees of the other.

    Between two runs the mask is one of a few bands, and which of them depends on the device. Where
    it is the same for all, it is part of the program; else every device takes its own branch.
    """
    device = jax.lax.axis_index(call.axis_name)
    every = np.stack([step.bounds for step in place.steps])  # (steps, devices, runs, runs, 2)
    runs = call.placement.num_runs
    for a in range(runs):
        for b in range(runs):
            bounds = every[:, :, a, b].reshape(-1, 2)
            cases, which = np.unique(bounds, axis=0, return_inverse=True)
            bands = [(int(low), int(high)) for low, high in cases]
            if bands == [HIDDEN]:
                continue
            source = (device - place.shift) % call.placement.devices
            branches = [
                (lambda nothing=nothing: nothing)
                if band == HIDDEN
                else functools.partial(of_runs, a, b, _mask(call, data, band, (a, b), source))
                for band in bands
            ]
            if len(branches) == 1:
                yield a, b, branches[0]()
                continue
            table = jnp.asarray(which.reshape(every.shape[:2]), jnp.int32)
            yield a, b, jax.lax.switch(table[place.number, device], branches)


def _mask(
    call: RingCall, data: Mask, band: tuple[int, int], pair: tuple[int, int], source: Any
) -> Mask | None:
    """Return what a run of this device's queries sees of a run of the keys of ``source``."""
    length = call.placement.run_length
    lower, upper = band
    a, b = pair

    def count(lengths: Array | None, device: Any, run: int) -> Array | None:
        """How many positions of a run lie before each sequence's end."""
        if lengths is None:
            return None
        start = jnp.asarray(call.placement.starts, jnp.int32)[device, run]
        left = -((start - lengths.astype(jnp.int32)) // call.placement.stride)
        return jnp.clip(left, 0, length)

    whole = call.placement.num_runs * length  # positions of a device

    def taken(x: Any, axis: int, start: Any) -> Any:
        """One run's positions of an axis, if there is one of more than 1."""
        if x is None or x.shape[axis] == 1:
            return x
        return jax.lax.dynamic_slice_in_dim(x, start, length, axis)

    of_keys = source * whole + b * length
    mask = Mask(
        None if lower <= 1 - length else lower,
        None if upper >= length - 1 else upper,
        count(data.key_lengths, source, b),
        count(data.query_lengths, jax.lax.axis_index(call.axis_name), a),
        array=taken(taken(data.array, -2, a * length), -1, of_keys),
        query_segments=taken(data.query_segments, -1, a * length),
        key_segments=taken(data.key_segments, -1, of_keys),
    )
    return mask if mask.kinds else None


def _split(x: Array, runs: int, axis: int) -> list[Array]:
    """Cut an array into the runs of its positions."""
    return [x] if runs == 1 else jnp.split(x, runs, axis=axis)
