"""What a query may see: every way of hiding a key, as one structure and as one array."""

import math
from dataclasses import fields

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from mha_book._checks import check, check_bias, check_boolean, check_broadcastable
from mha_book.masks import Mask, causal

__all__ = ["as_mask", "one_batch_axis", "silence", "visibility"]


def as_mask(
    mask: Mask | Bool[Array, "..."] | None, is_causal: bool, scores_shape: tuple[int, ...]
) -> Mask | None:
    """Return what a caller gave as ``mask`` and ``is_causal`` as one checked structure.

    Args:
        mask: a :class:`Mask`, a boolean array of full rank, or None.
        is_causal: whether to combine it with :func:`causal`.
        scores_shape: the shape of the scores, ``(…, N, T, S)`` (or ``(T, S)`` for one head).

    Returns:
        The mask, or None where everything is visible.

    Raises:
        ValueError: the array is not boolean or does not have the rank of the scores with each axis
            equal or 1; lengths or bounds do not have the shape of the batch axes.

    Example:
        >>> as_mask(None, True, (3, 3)).upper
        0
    """
    if mask is not None and not isinstance(mask, Mask):
        check_boolean(mask, "mask", "a Mask or a boolean array (an additive mask is a bias)")
        mask = Mask(array=mask)
    if mask is not None:
        batch = tuple(scores_shape[:-3])
        for field in fields(mask):
            value, name = getattr(mask, field.name), f"mask.{field.name}"
            if value is None or (field.name in ("lower", "upper") and jnp.ndim(value) == 0):
                continue
            if field.name == "array":
                check_broadcastable(value, "mask", scores_shape, "(…, N, T, S)")
                continue
            what = f"one number for each entry of the batch axes, shape {batch}"
            check(jnp.shape(value) == batch, name, what, f"shape {jnp.shape(value)}")
    if not is_causal:
        return mask
    return causal() if mask is None else mask & causal()


def visibility(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Bool[Array, "..."] | None:
    """Return everything that hides a key from a query as one boolean array, True = attend.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        mask: as in :func:`~mha_book.attention.attention_weights`.
        bias: as in :func:`~mha_book.attention.attention_weights`; -inf hides a key.
        is_causal: as in :func:`~mha_book.attention.attention_weights`.

    Returns:
        Array of the rank of the scores, each axis equal or 1; None where nothing is hidden.

    Raises:
        ValueError: ``mask`` or ``bias`` does not fit the scores.

    Example:
        >>> visibility(jnp.ones((2, 1)), jnp.ones((3, 1)), is_causal=True).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0]]
    """
    shape = (*query.shape[:-1], key.shape[-2])
    structure = as_mask(mask, is_causal, shape)
    visible = None
    if structure is not None:
        visible = structure.materialise(shape[-2], shape[-1])
        visible = jnp.reshape(visible, (1,) * (len(shape) - visible.ndim) + visible.shape)
    if bias is not None:
        check_bias(bias, shape)
        unhidden = bias > -jnp.inf
        visible = unhidden if visible is None else jnp.logical_and(visible, unhidden)
    return visible


def silence(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    visible: Bool[Array, "..."] | None,
) -> tuple[Array, Array, Array]:
    """Replace by zeros the queries that see no key, and the keys and values that no query sees.

    A masked score is thrown away after the product, but zero times NaN is NaN, forward and
    backward; so padding that may hold anything has to be emptied before the product.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        value: ``(…, K, S, C)``.
        visible: what :func:`visibility` gave.

    Returns:
        The three arrays.

    Example:
        >>> visible = jnp.array([[True, False]])
        >>> key = value = jnp.array([[1.0], [jnp.nan]])
        >>> silence(jnp.ones((1, 1)), key, value, visible)[2].tolist()
        [[1.0], [0.0]]
    """
    if visible is None:
        return query, key, value
    rows = jnp.any(visible, axis=-1)[..., None]  # (…, N, T, 1), each axis equal or 1
    columns = jnp.any(visible, axis=-2)[..., None]  # (…, N, S, 1), likewise
    if query.ndim > 2 and columns.shape[-3] != 1:  # a key lives if a query of its group sees it
        num_kv_heads = key.shape[-3]
        group = query.shape[-3] // num_kv_heads
        shape = (*columns.shape[:-3], num_kv_heads, group, *columns.shape[-2:])
        columns = jnp.any(jnp.reshape(columns, shape), axis=-3)  # (…, K, S, 1)

    def zero(array: Array, alive: Array) -> Array:
        return jnp.where(alive, array, jnp.zeros((), array.dtype))

    return zero(query, rows), zero(key, columns), zero(value, columns)


def one_batch_axis(
    array: Shaped[Array, "..."] | None, batch: tuple[int, ...]
) -> Shaped[Array, "..."] | None:
    """Fold the batch axes of a mask or bias of full rank into one, of full size or 1.

    Args:
        array: ``(*batch, N, T, S)``, each axis equal or 1; None stays None.
        batch: the batch axes of the operands.

    Returns:
        ``(B, N, T, S)``, where ``B`` is the product of the batch axes, or 1.

    Example:
        >>> one_batch_axis(jnp.ones((3, 1, 1, 4, 5)), (3, 2)).shape
        (6, 1, 4, 5)
    """
    if array is None:
        return None
    if math.prod(array.shape[:-3]) != 1:
        array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return jnp.reshape(array, (-1, *array.shape[-3:]))
