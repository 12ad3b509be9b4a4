"""Calling anybody's attention: arrays of its kind, in its layout, by the names that it uses.

A function's signature says which masks it takes and what they are called. What it cannot say, the
layout and what True means in a mask, is tried: each way to call it is an :class:`Interface`.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mha_book.conformance.oracle import Case, Conventions, Numbers, Steps, attend, flat

__all__ = ["LAYOUTS", "POLARITIES", "ROLES", "Interface", "function_interfaces", "roles_of"]

ROLES = {
    "mask": ("mask", "attn_mask", "attention_mask", "masks", "bias", "attn_bias"),
    "padding": ("key_padding_mask", "padding_mask", "pad_mask"),
    "causal": ("is_causal", "causal", "use_causal_mask", "causal_mask"),
    "window": ("window", "window_size", "sliding_window", "local_window_size"),
    "segments": ("segments", "segment_ids", "document_ids", "doc_ids", "documents", "seq_ids"),
    "heads": ("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads", "h"),
    "kv_heads": ("num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv_head"),
    "grouped": ("enable_gqa",),
    "training": ("training", "train", "is_training"),
    "evaluation": ("deterministic", "inference"),
}
"""What a parameter does, and what it is called."""

LAYOUTS = ("BNTH", "BTNH", "NTH", "TNH", "BTD", "TD", "BTH", "TH")
"""Orders of batch, heads, positions and width that are tried; ``D`` is all heads side by side."""

POLARITIES = ("attend", "hide", "additive")
"""What a mask says: True attends, True hides, or a number that is added to the score."""


class Interface(NamedTuple):
    """One way to call a subject and what it should then return.

    Args:
        call: runs the subject on a case, and returns NumPy float64.
        expect: what the oracle returns in the same form, given conventions and steps.
        roles: which arguments the subject takes, and their names.
        told: layout and the like, in words, for the report.
        within: which bugs can happen (see :class:`~mha_book.conformance.mutants.Mutant`).
        heads: ``N`` if the subject fixes it.
    """

    call: Callable[[Case], Numbers]
    expect: Callable[[Case, Conventions, Steps], Numbers]
    roles: dict[str, str]
    told: dict[str, str]
    within: tuple[str, ...]
    layer: bool = False


def kind_of(function: Any) -> str:
    """Return which arrays a function or object wants: "torch", "jax" or "numpy"."""
    owners = [function, *type(function).__mro__]
    owners += getattr(inspect.unwrap(function), "__globals__", {}).values()
    roots = {
        str(getattr(one, "__module__", None) or getattr(one, "__name__", "")).partition(".")[0]
        for one in owners
    }
    for kind in ("torch", "jax"):
        if kind in roots:
            return kind
    return "numpy"


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
    if dtype == "bfloat16":
        import ml_dtypes  # JAX brings it

        return x.astype(ml_dtypes.bfloat16)
    return x.astype(dtype or "float32") if floating else x


def numbers_of(output: Any) -> Numbers:
    """Return an output, or the first array of several, as float64."""
    while isinstance(output, tuple | list):
        output = output[0]
    if hasattr(output, "detach"):
        output = output.detach().to("cpu").double().numpy()
    return np.asarray(output).astype(np.float64)


def roles_of(
    function: Any, names: dict[str, str], roles: dict[str, tuple[str, ...]] = ROLES
) -> dict[str, str]:
    """Return role -> name of the parameter, from the signature and from what the caller tells."""
    try:
        parameters = list(inspect.signature(function).parameters)[1:]
    except (TypeError, ValueError):  # a builtin: torch's is the one that is known
        parameters = ["attn_mask", "is_causal", "enable_gqa"]
    found = {
        role: name
        for role, known in roles.items()
        for name in reversed(known)
        if name in parameters
    }
    return found | names


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
    if x.size != np.prod(shape):
        raise ValueError(f"the output has shape {x.shape}, which is not that of the queries")
    if "D" in layout or x.shape == (batch, length, num_heads * width):
        expected = (batch, length, num_heads * width)
        return x.reshape(expected) if x.shape in (expected, expected[1:]) else _misshapen(x)
    sizes = dict(zip("BNTH", shape, strict=True))
    if x.shape != tuple(sizes[axis] for axis in layout):
        _misshapen(x)
    axes = [layout.index(axis) for axis in "BNTH" if axis in layout]
    return flat(x.transpose(axes).reshape(shape))


def _misshapen(x: Numbers) -> Numbers:
    raise ValueError(f"the output has shape {x.shape}, which is not that of the queries")


def reduced(case: Case, layout: str) -> Case:
    """Keep the first sequence, or the first head, of a case for a layout without that axis."""
    if "B" not in layout:
        mask = None if case.mask is None else case.mask[:1]
        segments = None if case.segments is None else case.segments[:1]
        q, k, v = (x[:1] for x in case[:3])
        case = case._replace(q=q, k=k, v=v, mask=mask, segments=segments)
    if "N" not in layout and "D" not in layout:
        mask = None if case.mask is None else case.mask[:, :1]
        q, k, v = (x[:, :1] for x in case[:3])
        case = case._replace(q=q, k=k, v=v, mask=mask)
    return case


def mask_forms(mask: Numbers, layout: str, num_heads: int, queries: int) -> Iterator[Numbers]:
    """Return a mask ``(B|1, N|1, T|1, S)`` in the shapes that implementations take."""
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


def keywords(
    roles: dict[str, str], case: Case, kind: str, polarity: str, mask: Numbers | None
) -> dict[str, Any]:
    """Return the arguments besides the operands that a case means."""
    given: dict[str, Any] = {}
    if mask is not None:
        if polarity == "additive":
            mask = np.where(mask, 0.0, -1e9)
        elif polarity == "hide":
            mask = ~mask
        given["mask"] = array_of(kind, np.ascontiguousarray(mask))
    if "causal" in roles:
        given["causal"] = case.causal
    if case.window is not None:
        given["window"] = case.window
    if case.segments is not None:
        given["segments"] = array_of(kind, case.segments)
    given |= {"heads": case.q.shape[1], "kv_heads": case.k.shape[1]}
    given |= {"grouped": True, "training": False, "evaluation": True}
    return {roles[role]: value for role, value in given.items() if role in roles}


def called(attempts: Iterator[Callable[[], Any]]) -> Any:
    """Return what the first attempt that raises nothing returns; else raise the first error."""
    first: Exception | None = None
    for attempt in attempts:
        try:
            return attempt()
        except Exception as error:
            first = first or error
    raise first or ValueError("there is no way to call it")


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
        kind: "numpy", "jax" or "torch"; guessed if not told.
        layout: one of :data:`LAYOUTS`; found by trying if not told.
        polarity: one of :data:`POLARITIES`; found by trying if not told.
        names: role of :data:`ROLES` -> name of the parameter, for names that are not known.
        dtype: of the operands; None for float32.

    Example:
        >>> def attention(q, k, v, mask=None): ...
        >>> len(function_interfaces(attention, layout="BNTH"))
        3
    """
    kind = kind or kind_of(function)
    roles = roles_of(function, names or {})
    layouts = (layout,) if layout else LAYOUTS
    polarities = (polarity,) if polarity else POLARITIES if "mask" in roles else POLARITIES[:1]
    found = []
    for axes, means in itertools.product(layouts, polarities):
        if "heads" in roles and layout is None and "D" not in axes:
            continue
        if "D" in axes and "heads" not in roles:
            continue
        found.append(_function_interface(function, kind, roles, axes, means, dtype))
    return found


def _function_interface(
    function: Callable[..., Any],
    kind: str,
    roles: dict[str, str],
    layout: str,
    polarity: str,
    dtype: str | None,
) -> Interface:
    def call(case: Case) -> Numbers:
        case = reduced(case, layout)
        shape = case.q.shape[:-1] + case.v.shape[-1:]
        operands = [array_of(kind, to_layout(x, layout), dtype) for x in case[:3]]

        def attempt(mask: Numbers | None) -> Callable[[], Numbers]:
            def run() -> Numbers:
                given = keywords(roles, case, kind, polarity, mask)
                return from_layout(numbers_of(function(*operands, **given)), layout, shape)

            return run

        if case.mask is None:
            return attempt(None)()
        return called(attempt(m) for m in mask_forms(case.mask, layout, *case.q.shape[1:3]))

    def expect(case: Case, conventions: Conventions, steps: Steps) -> Numbers:
        return flat(attend(reduced(case, layout), conventions, steps))

    told = {"arrays": kind, "layout": layout}
    if "mask" in roles:
        told["mask"] = polarity
    within = ("", "flat") if "D" in layout else ("",)
    return Interface(call, expect, roles, told, within)
