"""Calling anybody's attention: arrays of its kind, in its layout, by the names that it uses.

A function's signature says which masks it takes and what they are called. What it cannot say, the
layout and what True means in a mask, is tried: each way to call it is an :class:`Interface`.
"""

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mha_book.conformance.oracle import TEXTS, Case, Conventions, Numbers, Steps, attend, flat
from mha_book.conformance.probes import make_case

__all__ = ["LAYOUTS", "POLARITIES", "ROLES", "Interface", "function_interfaces"]

ROLES: dict[str, list[str]] = TEXTS["arguments"]
"""What a parameter does, and what it is called."""

LAYOUTS = ("BNTH", "BTNH", "BTH", "NTH", "TNH", "BTD", "TD", "TH")
"""Orders of batch, heads, positions and width that are tried; ``D`` is all heads side by side."""

POLARITIES = tuple(TEXTS["masks"])
"""What a mask says: True attends, True hides, or a number that is added to the score."""


class Interface(NamedTuple):
    """One way to call a subject and what it should then return.

    Args:
        call: runs the subject on a case, and returns NumPy float64.
        expect: what the oracle returns in the same form, given conventions and steps.
        roles: which arguments the subject takes, and their names.
        told: layout and the like, in words, for the report.
        within: which bugs can happen (see :class:`~mha_book.conformance.mutants.Mutant`).
        layer: whether it is a layer, which has its operands inside.
        never: scenes that it cannot have, by name.
    """

    call: Callable[[Case], Numbers]
    expect: Callable[[Case, Conventions, Steps], Numbers]
    roles: dict[str, str]
    told: dict[str, str]
    within: tuple[str, ...]
    layer: bool = False
    never: tuple[str, ...] = ()


class Way(NamedTuple):
    """A function with its kind of arrays, its arguments, its layout, and what a mask says."""

    function: Callable[..., Any]
    kind: str
    roles: dict[str, str]
    layout: str
    polarity: str

    def words(self) -> dict[str, str]:
        """Return how it is called, for the report."""
        mask = {"mask": self.polarity} if "mask" in self.roles else {}
        return {"arrays": self.kind, "layout": self.layout} | mask

    def keywords(self, case: Case, mask: Numbers | None, window: Any) -> dict[str, Any]:
        """Return the arguments besides the operands that a case means."""
        given: dict[str, Any] = {"heads": case.q.shape[1], "kv_heads": case.k.shape[1]}
        given |= {"grouped": True, "training": False, "evaluation": True, "causal": case.causal}
        if mask is not None:
            if self.polarity == "additive":
                mask = np.where(mask, 0.0, -1e9)
            elif self.polarity == "hide":
                mask = ~mask
            given["mask"] = array_of(self.kind, np.ascontiguousarray(mask))
        if window is not None or "required window" in self.roles:
            given["window"] = window
        if case.segments is not None:
            segments = case.segments if "B" in self.layout else case.segments[0]
            given["segments"] = array_of(self.kind, segments)
        return {self.roles[role]: value for role, value in given.items() if role in self.roles}

    def call(
        self, operands: list[Any], case: Case, num_heads: int, shaped: Callable[[Numbers], Numbers]
    ) -> Numbers:
        """Return the output, ``shaped``, with the first form of mask and window that is taken.

        A window is how many keys a query sees, or a pair of how many on its left and right.
        """
        first: Exception | None = None
        queries, keys = case.q.shape[2], case.k.shape[2]
        masks = [case.mask]
        if case.mask is None and "required mask" in self.roles:
            masks = [np.ones((1, 1, queries, keys), bool)]
        if case.causal and "mask" in self.roles:  # where a flag is no more than a hint
            masks.append(np.tri(queries, keys, dtype=bool)[None, None])
        windows: list[Any] = [case.window]
        if case.window is not None:
            windows.append((case.window, 0))
        elif "required window" in self.roles:
            windows += [queries + keys, (queries + keys, queries + keys)]
        forms = (mask_forms(one, self.layout, num_heads, queries) for one in masks)
        for mask, window in itertools.product(itertools.chain.from_iterable(forms), windows):
            try:
                given = self.keywords(case, mask, window)
                return shaped(numbers_of(self.function(*operands, **given)))
            except Exception as error:
                first = first or error
        raise first or ValueError("there is no way to call it")


def ways_of(
    function: Any, kind: str, roles: dict[str, str], layouts: list[str], polarity: str | None
) -> list[Way]:
    """Return a way for each layout and each meaning of a mask, where it takes one."""
    polarities = (polarity,) if polarity else POLARITIES if "mask" in roles else POLARITIES[:1]
    pairs = itertools.product(layouts, polarities)
    return [Way(function, kind, roles, axes, means) for axes, means in pairs]


def kind_of(function: Any) -> str:
    """Return which arrays a function or object wants: "torch", "jax" or "numpy"."""
    owners = [function, *type(function).__mro__]
    owners += getattr(inspect.unwrap(function), "__globals__", {}).values()
    roots = {
        str(getattr(one, "__module__", None) or getattr(one, "__name__", "")).partition(".")[0]
        for one in owners
    }
    return next((kind for kind in ("torch", "jax") if kind in roots), "numpy")


def array_of(kind: str, x: Any, dtype: str | None = None) -> Any:
    """Return an array of NumPy, JAX or torch; ``dtype`` where it is floating."""
    x = np.asarray(x)
    floating = x.dtype.kind == "f"
    if kind == "torch":
        import torch

        tensor = torch.tensor(x.copy())
        return tensor.to(getattr(torch, dtype or "float32")) if floating else tensor
    if kind == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x, dtype or "float32") if floating else jnp.asarray(x)
    return x.astype(dtype or "float32") if floating else x  # JAX brings NumPy a bfloat16


def numbers_of(output: Any) -> Numbers:
    """Return an output, or the first array of several, as float64."""
    while isinstance(output, tuple | list):
        output = output[0]
    if hasattr(output, "detach"):
        output = output.detach().to("cpu").double().numpy()
    return np.asarray(output).astype(np.float64)


def roles_of(
    function: Any, names: dict[str, str], roles: dict[str, list[str]] = ROLES
) -> dict[str, str]:
    """Return role -> name of the parameter, from the signature and from what the caller tells."""
    try:
        every = list(inspect.signature(function).parameters.values())[1:]
        parameters = {one.name: one.default is one.empty for one in every}
    except (TypeError, ValueError):  # a builtin: torch's is the one that is known
        parameters = dict.fromkeys(["attn_mask", "is_causal", "enable_gqa"], False)
    found = {
        role: name
        for role, known in roles.items()
        for name in reversed(known)
        if name in parameters
    } | names
    required = [role for role in ("mask", "window") if parameters.get(found.get(role, ""))]
    return found | {f"required {role}": found[role] for role in required}


def to_layout(x: Numbers, layout: str) -> Numbers:
    """Bring ``(B, N, T, H)`` into a layout; axes that it lacks have size one."""
    if "D" in layout:
        x = flat(x)
        return x if layout == "BTD" else x[0]
    axes = [axis for axis in "BNTH" if axis in layout]
    x = x.reshape([size for axis, size in zip("BNTH", x.shape, strict=True) if axis in layout])
    return x.transpose([axes.index(axis) for axis in layout])


def from_layout(x: Numbers, layout: str, shape: tuple[int, ...]) -> Numbers:
    """Bring an output to ``(B, T, N·H)``; one with all heads in one axis is there already."""
    batch, num_heads, length, width = shape
    together = (batch, length, num_heads * width)
    if "D" in layout or x.shape == together:
        if x.shape in (together, together[1:]):
            return x.reshape(together)
    elif x.size == np.prod(shape):
        sizes = dict(zip("BNTH", shape, strict=True))
        if x.shape == tuple(sizes[axis] for axis in layout):
            axes = [layout.index(axis) for axis in "BNTH" if axis in layout]
            return flat(x.transpose(axes).reshape(shape))
    raise ValueError(f"the output has shape {x.shape}, which is not that of the queries")


def reduced(case: Case, layout: str) -> Case:
    """Keep the first sequence, or the first head, of a case for a layout without that axis."""
    batch = slice(None) if "B" in layout else slice(1)
    head = slice(None) if {"N", "D"} & {*layout} else slice(1)
    q, k, v = (x[batch, head] for x in case[:3])
    mask = None if case.mask is None else case.mask[batch, head]
    segments = None if case.segments is None else case.segments[batch]
    return case._replace(q=q, k=k, v=v, mask=mask, segments=segments)


def mask_forms(mask: Numbers, layout: str, num_heads: int, queries: int) -> Iterator[Numbers]:
    """Return no mask, or a mask ``(B|1, N|1, T|1, S)`` in the shapes that implementations take."""
    if mask is None:
        yield None
        return
    batched = "B" in layout
    mask = mask if batched else mask[:1]
    full = np.broadcast_to(mask, (*mask.shape[:2], queries, mask.shape[-1]))
    if batched:
        yield mask
        yield np.broadcast_to(full, (len(mask), num_heads, *full.shape[2:]))
        yield full[:, 0]
        yield np.repeat(full[:, 0], num_heads, 0)
        if mask.shape[-2] == 1:
            yield mask[:, 0, 0]
    elif "N" in layout:
        yield full[0]
    if len(mask) == 1:
        yield full[0, 0]


def function_interfaces(
    function: Callable[..., Any],
    *,
    kind: str | None = None,
    layout: str | None = None,
    polarity: str | None = None,
    names: dict[str, str] | None = None,
    dtype: str | None = None,
) -> list[Interface]:
    """Return the ways in which a function of queries, keys and values may be meant.

    Args:
        function: called as ``function(q, k, v, **keywords)``.
        kind: "numpy", "jax" or "torch"; guessed if not told, and another tried if none of it runs.
        layout: one of :data:`LAYOUTS`; found by trying if not told.
        polarity: one of :data:`POLARITIES`; found by trying if not told.
        names: role of :data:`ROLES` -> name of the parameter, for names that are not known.
        dtype: of the operands; None for float32.

    Example:
        >>> def attention(q, k, v, mask=None): ...
        >>> len(function_interfaces(attention, layout="BNTH"))
        3
    """
    guess = kind_of(function)
    roles = roles_of(function, names or {})
    layouts = [layout] if layout else [one for one in LAYOUTS if ("D" in one) == ("heads" in roles)]
    others = [one for one in ("numpy", "torch", "jax") if one != guess and one in sys.modules]
    found = []
    for one in [kind] if kind else [guess, *others]:  # a module may use several
        ways = ways_of(function, one, roles, layouts, polarity)
        found.append([_function_interface(way, dtype) for way in ways])
        if any(map(_runs, found[-1])):
            return found[-1]
    return found[0]


def _runs(interface: Interface) -> bool:
    try:
        interface.call(make_case("plain"))
    except Exception:
        return False
    return True


def _function_interface(way: Way, dtype: str | None) -> Interface:
    layout = way.layout

    def call(case: Case) -> Numbers:
        case = reduced(case, layout)
        shape = case.q.shape[:-1] + case.v.shape[-1:]
        operands = [array_of(way.kind, to_layout(x, layout), dtype) for x in case[:3]]
        return way.call(operands, case, shape[1], lambda out: from_layout(out, layout, shape))

    def expect(case: Case, conventions: Conventions, steps: Steps) -> Numbers:
        return flat(attend(reduced(case, layout), conventions, steps))

    within = ("", "flat") if "D" in layout else ("",)
    never = () if {"N", "D"} & {*layout} else ("grouped",)
    return Interface(call, expect, way.roles, way.words(), within, never=never)
