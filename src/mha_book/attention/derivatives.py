"""Functions whose gradient is written by hand, differentiable in forward mode and twice as well.

``jax.custom_vjp`` tells JAX the reverse alone: ``jax.jvp`` of such a function raises, and so does
``jax.hessian``. ``jax.custom_jvp`` asks for a derivative that JAX can transpose, which a loop over
blocks whose length depends on the data is not. Here the derivative is one primitive: evaluated it
is the derivative of the function as written, transposed it is the gradient written by hand. Where
either is differentiated again, the derivative is that of a plain reference of the same function.

Arguments, what the forward pass kept, tangents and cotangents are operands of the primitive; its
parameters are functions and shapes. Nothing of a trace is closed over.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir

__all__: list[str] = []

Result = TypeVar("Result")
Kept = TypeVar("Kept")
Leaves = Sequence[Any]


class _Rule(NamedTuple):
    """The functions that :func:`with_gradient_by_hand` was given."""

    as_written: Callable[..., Any]
    backward: Callable[..., tuple[Any, ...]]
    reference: Callable[..., Any]


class _Linear(NamedTuple):
    """A derivative without its operands: what the primitive is told of them.

    The operands are the leaves of the arguments, those of what was kept, and one tangent for each
    argument's leaf in ``places``.
    """

    rule: _Rule
    arguments: Any  # their structure
    places: tuple[int, ...]  # which of their leaves are real numbers
    kept: Any  # the structure of what was kept
    result: Any  # and of the result
    types: tuple[Any, ...]  # of the leaves of the result
    # The vmap around it, innermost first: size, and axis of each operand before the tangents,
    # whose axis is the first.
    maps: tuple[tuple[int, tuple[int | None, ...]], ...] = ()

    @property
    def num_fixed(self) -> int:
        return int(self.arguments.num_leaves + self.kept.num_leaves)


def with_gradient_by_hand(
    forward: Callable[..., tuple[Result, Kept]],
    backward: Callable[[Kept, Result], tuple[Any, ...]],
    reference: Callable[..., Result],
    kernel: Callable[..., Result] | None = None,
) -> Callable[..., Result]:
    """Return the function that ``forward`` computes, with the gradient that ``backward`` computes.

    None of the functions may close over an array of a trace: JAX keeps them with its programs.

    Args:
        forward: from the arguments, pytrees of arrays, to the result and what is to be kept for the
            backward pass.
        backward: from what was kept and the gradient of the result to those of the arguments, one
            pytree each; None where an argument, or a part of it, has none.
        reference: the same function of the same arguments in operations that JAX differentiates as
            often as asked; it is used for second derivatives alone.
        kernel: the same function without what is kept, where keeping it costs something. With it,
            ``forward`` may be what JAX cannot differentiate in forward mode, as a compiled kernel
            is: the forward mode is that of ``reference``.

    Returns:
        A function of the arguments to the result, to be differentiated in either mode.
    """
    as_written = reference if kernel is not None else lambda *x: forward(*x)[0]
    rule = _Rule(as_written, backward, reference)
    saving = jax.custom_jvp(forward)

    @saving.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        result, kept = saving(*primals)
        flat, arguments = jax.tree.flatten(primals)
        flat_kept, kept_tree = jax.tree.flatten(kept)
        results, result_tree = jax.tree.flatten(result)
        places = [n for n, x in enumerate(flat) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
        types = tuple(jax.typeof(x) for x in results)
        linear = _Linear(rule, arguments, tuple(places), kept_tree, result_tree, types)
        all_tangents = jax.tree.leaves(tangents)
        moving = [all_tangents[n] for n in places]
        changes = _linear_p.bind(*flat, *flat_kept, *moving, linear=linear)
        # What is kept matters to the gradient alone, whose own derivative is the reference's.
        still = jax.tree.map(_no_tangent, kept)
        return (result, kept), (jax.tree.unflatten(result_tree, changes), still)

    def result_alone(*arguments: Any) -> Result:
        return saving(*arguments)[0]

    if kernel is None:
        return result_alone
    without_keeping = jax.custom_jvp(kernel)
    without_keeping.defjvp(functools.partial(jax.jvp, result_alone))
    return without_keeping


def _no_tangent(x: Any) -> Any:
    is_real = jnp.issubdtype(x.dtype, jnp.inexact)
    return jnp.zeros_like(x) if is_real else jnp.zeros(x.shape, jax.dtypes.float0)


def _of_moving(
    linear: _Linear, function: Callable[..., Any], fixed: Leaves
) -> Callable[..., list[Any]]:
    """Return a function of the arguments' leaves that are real numbers; the others stand still."""

    def call(*moving: Any) -> list[Any]:
        moved = dict(zip(linear.places, moving, strict=True))
        leaves = [moved.get(n, x) for n, x in enumerate(fixed[: linear.arguments.num_leaves])]
        return jax.tree.leaves(function(*jax.tree.unflatten(linear.arguments, leaves)))

    return call


def _derivative(linear: _Linear, function: Callable[..., Any], *operands: Any) -> list[Any]:
    fixed, tangents = operands[: linear.num_fixed], operands[linear.num_fixed :]
    start = tuple(fixed[n] for n in linear.places)
    return list(jax.jvp(_of_moving(linear, function, fixed), start, tuple(tangents))[1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradient(linear: _Linear, *operands: Any) -> list[Any]:
    """Return the gradient by hand, from the fixed operands and the gradient of the result."""
    flat = operands[: linear.arguments.num_leaves]
    kept = jax.tree.unflatten(linear.kept, operands[len(flat) : linear.num_fixed])
    d_result = jax.tree.unflatten(linear.result, operands[linear.num_fixed :])
    found = linear.rule.backward(kept, d_result)
    # Nones stand for whole arguments, or for parts of one.
    filled = jax.tree.map(
        lambda d, x: jax.tree.map(jnp.zeros_like, x) if d is None else d,
        found, jax.tree.unflatten(linear.arguments, flat), is_leaf=lambda d: d is None,
    )  # fmt: skip
    leaves = jax.tree.leaves(filled)
    return [leaves[n].astype(flat[n].dtype) for n in linear.places]


@_gradient.defjvp
def _(linear: _Linear, primals: Leaves, tangents: Leaves) -> tuple[Any, Any]:
    fixed, d_result = primals[: linear.num_fixed], list(primals[linear.num_fixed :])

    def of_reference(moving: Leaves, d_result: list[Any]) -> list[Any]:
        function = _of_moving(linear, linear.rule.reference, fixed)
        return list(jax.vjp(function, *moving)[1](d_result))

    start = [fixed[n] for n in linear.places], d_result
    moving = [tangents[n] for n in linear.places], list(tangents[linear.num_fixed :])
    return _gradient(linear, *primals), jax.jvp(of_reference, start, moving)[1]


def _mapped(linear: _Linear, function: Callable[..., Any], *operands: Any) -> list[Any]:
    """Call a function of one entry's operands under the maps that the primitive is under."""
    for size, axes in linear.maps:
        rest = (0,) * (len(operands) - len(axes))
        function = jax.vmap(function, in_axes=(*axes, *rest), axis_size=size)
    found: list[Any] = function(*operands)
    return found


_linear_p = core.Primitive("linear_with_transpose")
_linear_p.multiple_results = True


@_linear_p.def_impl
def _apply(*operands: Any, linear: _Linear) -> list[Any]:
    return _mapped(
        linear, functools.partial(_derivative, linear, linear.rule.as_written), *operands
    )


@_linear_p.def_abstract_eval
def _types(*operands: Any, linear: _Linear) -> list[Any]:
    sizes = tuple(size for size, _ in reversed(linear.maps))
    return [t.update(shape=(*sizes, *t.shape), sharding=None) if sizes else t for t in linear.types]


mlir.register_lowering(_linear_p, mlir.lower_fun(_apply, multiple_results=True))


def _jvp(primals: Leaves, tangents: Leaves, *, linear: _Linear) -> tuple[Any, Any]:
    results = _linear_p.bind(*primals, linear=linear)
    fixed, moving = tangents[: linear.num_fixed], tangents[linear.num_fixed :]
    instantiated = [ad.instantiate_zeros(t) for t in moving]
    if all(type(t) is ad.Zero for t in fixed):
        rest = primals[: linear.num_fixed]
        return results, _linear_p.bind(*rest, *instantiated, linear=linear)
    reference = functools.partial(_derivative, linear, linear.rule.reference)
    all_tangents = [*(ad.instantiate_zeros(t) for t in fixed), *instantiated]
    call = functools.partial(_mapped, linear, reference)
    return results, jax.jvp(call, tuple(primals), tuple(all_tangents))[1]


def _transpose(cotangents: Leaves, *operands: Any, linear: _Linear) -> list[Any]:
    fixed = operands[: linear.num_fixed]
    d_results = [ad.instantiate_zeros(c) for c in cotangents]
    gradient = functools.partial(_gradient, linear)
    return [None] * len(fixed) + list(_mapped(linear, gradient, *fixed, *d_results))


def _batch(operands: Leaves, axes: Sequence[Any], *, linear: _Linear) -> tuple[Any, Any]:
    size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    count = linear.num_fixed
    first = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(operands, axes, strict=True)]
    moving = [
        jnp.broadcast_to(x[None], (size, *x.shape)) if a is None else x
        for x, a in zip(first[count:], axes[count:], strict=True)
    ]
    inner = tuple(None if a is None else 0 for a in axes[:count])
    batched = linear._replace(maps=(*linear.maps, (size, inner)))
    found = _linear_p.bind(*first[:count], *moving, linear=batched)
    return found, [0] * len(found)


ad.primitive_jvps[_linear_p] = _jvp
ad.primitive_transposes[_linear_p] = _transpose
batching.primitive_batchers[_linear_p] = _batch
