"""Functions whose gradient is written by hand, differentiable in forward mode and twice as well.

``jax.custom_vjp`` tells JAX the reverse alone: ``jax.jvp`` of such a function raises, and so does
``jax.hessian``. ``jax.custom_jvp`` asks for a derivative that JAX can transpose, which a loop over
blocks with an end that only the data know is not. Here the derivative is a linear map with two
faces: forward it is the derivative of the function as written, and transposed it is the gradient
written by hand. Where the map itself is differentiated, it is that of a plain twin of the function.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir

__all__ = ["with_gradient_by_hand"]

Result = TypeVar("Result")
Kept = TypeVar("Kept")


def with_gradient_by_hand(
    forward: Callable[..., tuple[Result, Kept]],
    backward: Callable[[Kept, Result], tuple[Any, ...]],
    twin: Callable[..., Result],
    kernel: Callable[..., Result] | None = None,
) -> Callable[..., Result]:
    """Return the function that ``forward`` computes, with the gradient that ``backward`` computes.

    Args:
        forward: from the arguments, pytrees of arrays, to the result and what is to be kept for the
            backward pass.
        backward: from what was kept and the gradient of the result to those of the arguments, one
            pytree each; None where an argument, or a part of it, has none.
        twin: the same function of the same arguments in operations that JAX differentiates as often
            as asked; it is used for second derivatives alone.
        kernel: the same function without what is kept, where keeping it costs something. With it,
            ``forward`` may be what JAX cannot differentiate in forward mode, as a compiled kernel
            is: the forward mode is that of ``twin``.

    Returns:
        A function of the arguments to the result, to be differentiated in either mode.

    Example:
        >>> square = with_gradient_by_hand(
        ...     lambda x: (x * x, x), lambda x, d: (2 * x * d,), lambda x: x * x
        ... )
        >>> float(jax.grad(square)(3.0)), float(jax.jvp(square, (3.0,), (1.0,))[1])
        (6.0, 6.0)
    """
    as_written = twin if kernel is not None else lambda *x: forward(*x)[0]

    @jax.custom_jvp
    def saving(*arguments: Any) -> tuple[Result, Kept]:
        return forward(*arguments)

    @saving.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        result, kept = saving(*primals)
        flat, tree = jax.tree.flatten(primals)
        places = [n for n, x in enumerate(flat) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
        flat_tangents = jax.tree.leaves(tangents)
        flat_kept, kept_tree = jax.tree.flatten(kept)
        result_tree = jax.tree.structure(result)

        def of_moving(function: Callable[..., Any], fixed: Any) -> Callable[..., list[Any]]:
            """The function of the arguments that have derivatives; the others stand still."""

            def call(*moving: Any) -> list[Any]:
                moved = dict(zip(places, moving, strict=True))
                arguments = [moved.get(n, x) for n, x in enumerate(fixed)]
                return jax.tree.leaves(function(*jax.tree.unflatten(tree, arguments)))

            return call

        def derivative(function: Callable[..., Any], *operands: Any) -> list[Any]:
            fixed, moving = operands[: len(flat)], operands[-len(places) :]
            start = [fixed[n] for n in places]
            return jax.jvp(of_moving(function, fixed), tuple(start), tuple(moving))[1]

        def gradient(*operands: Any) -> list[Any]:
            saved = operands[len(flat) : len(flat) + len(flat_kept)]
            d_result = jax.tree.unflatten(result_tree, operands[len(flat) + len(flat_kept) :])
            found = backward(jax.tree.unflatten(kept_tree, saved), d_result)
            # Nones stand for whole arguments, or for parts of one.
            filled = jax.tree.map(
                lambda d, x: jax.tree.map(jnp.zeros_like, x) if d is None else d,
                found, primals, is_leaf=lambda d: d is None,
            )  # fmt: skip
            leaves = jax.tree.leaves(filled)
            return [leaves[n].astype(flat[n].dtype) for n in places]

        def twin_gradient(*operands: Any) -> list[Any]:
            fixed = operands[: len(flat)]
            d_result = operands[len(flat) + len(flat_kept) :]
            start = [fixed[n] for n in places]
            return list(jax.vjp(of_moving(twin, fixed), *start)[1](list(d_result)))

        linear = _LinearMap(
            apply=functools.partial(derivative, as_written),
            transpose=gradient,
            twin=functools.partial(derivative, twin),
            twin_transpose=twin_gradient,
            num_fixed=len(flat) + len(flat_kept),
            results=tuple(jax.typeof(x) for x in jax.tree.leaves(result)),
        )
        moving = [flat_tangents[n] for n in places]
        changes = _linear_p.bind(*flat, *flat_kept, *moving, map=linear, jaxpr=None)
        # What is kept matters to the map above alone, whose own derivative is the twin's.
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
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return jnp.zeros(x.shape, jax.dtypes.float0)


@dataclass(frozen=True, eq=False)
class _LinearMap:
    """A function that is linear in its last operands, with its transpose and their plain twins."""

    apply: Callable[..., list[Any]]
    transpose: Callable[..., list[Any]]
    twin: Callable[..., list[Any]]
    twin_transpose: Callable[..., list[Any]]
    num_fixed: int
    results: tuple[Any, ...]  # their types


_linear_p = core.Primitive("linear_with_transpose")
_linear_p.multiple_results = True


@_linear_p.def_impl
def _apply(*operands: Any, map: _LinearMap, jaxpr: Any) -> list[Any]:
    return map.apply(*operands) if jaxpr is None else core.jaxpr_as_fun(jaxpr)(*operands)


@_linear_p.def_abstract_eval
def _types(*operands: Any, map: _LinearMap, jaxpr: Any) -> tuple[Any, ...]:
    return map.results


mlir.register_lowering(_linear_p, mlir.lower_fun(_apply, multiple_results=True))


def _jvp(primals: Any, tangents: Any, *, map: _LinearMap, jaxpr: Any) -> tuple[Any, Any]:
    results = _linear_p.bind(*primals, map=map, jaxpr=jaxpr)
    fixed, moving = tangents[: map.num_fixed], tangents[map.num_fixed :]
    instantiated = [ad.instantiate_zeros(t) for t in moving]
    if all(type(t) is ad.Zero for t in fixed):
        rest = primals[: map.num_fixed]
        return results, _linear_p.bind(*rest, *instantiated, map=map, jaxpr=jaxpr)
    all_tangents = [*(ad.instantiate_zeros(t) for t in fixed), *instantiated]
    return results, jax.jvp(map.twin, tuple(primals), tuple(all_tangents))[1]


def _transpose(cotangents: Any, *operands: Any, map: _LinearMap, jaxpr: Any) -> list[Any]:
    del jaxpr  # of the map before it was turned
    fixed, moving = operands[: map.num_fixed], operands[map.num_fixed :]
    turned = _LinearMap(
        apply=map.transpose,
        transpose=map.apply,
        twin=map.twin_transpose,
        twin_transpose=map.twin,
        num_fixed=map.num_fixed,
        results=tuple(x.aval for x in moving),
    )
    d_results = [ad.instantiate_zeros(c) for c in cotangents]
    # Traced here, so that whoever reads a program finds the gradient in it.
    jaxpr = jax.make_jaxpr(turned.apply)(*fixed, *d_results)
    found = _linear_p.bind(*fixed, *d_results, map=turned, jaxpr=jaxpr)
    return [None] * map.num_fixed + list(found)


def _batch(operands: Any, axes: Any, *, map: _LinearMap, jaxpr: Any) -> tuple[Any, Any]:
    del jaxpr  # of one entry
    size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    fixed, moving = operands[: map.num_fixed], operands[map.num_fixed :]
    inner = [None if a is None else 0 for a in axes[: map.num_fixed]]
    fixed = [
        x if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(fixed, axes[: map.num_fixed], strict=True)
    ]
    moving = [
        jnp.broadcast_to(x[None], (size, *x.shape)) if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(moving, axes[map.num_fixed :], strict=True)
    ]

    def over(function: Callable[..., Any], count: int) -> Callable[..., Any]:
        return jax.vmap(function, in_axes=(*inner, *[0] * count), axis_size=size)

    num_moving, num_results = len(moving), len(map.results)
    apply = over(map.apply, num_moving)
    jaxpr = jax.make_jaxpr(apply)(*fixed, *moving)
    batched = _LinearMap(
        apply=apply,
        transpose=over(map.transpose, num_results),
        twin=over(map.twin, num_moving),
        twin_transpose=over(map.twin_transpose, num_results),
        num_fixed=map.num_fixed,
        results=tuple(jaxpr.out_avals),
    )
    return _linear_p.bind(*fixed, *moving, map=batched, jaxpr=jaxpr), [0] * num_results


ad.primitive_jvps[_linear_p] = _jvp
ad.primitive_transposes[_linear_p] = _transpose
batching.primitive_batchers[_linear_p] = _batch
