r"""Removing heads from the parameters: a smaller layer with the output that closed gates give.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``L`` layers.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mha_book._checks import check, check_boolean, check_model, checked, widen
from mha_book.multihead.parameters import MultiHeadParams, check_params

__all__ = ["mean_ablation", "prune_heads", "prune_model"]

Model = TypeVar("Model")  # parameters of a model: what comes has the type of what went in

_UNEVEN = ("raise", "repeat", "pad")


def prune_heads(
    params: MultiHeadParams, keep: Array | np.ndarray, *, uneven: str = "raise"
) -> MultiHeadParams:
    """Return the layer without some of its heads; the output is that of gates of 0.

    A key/value head goes when the last query head of its group does. The groups that are left must
    have one size, as the grouped layer has it. Where they have not:

    - ``"raise"``: an error.
    - ``"repeat"``: key/value heads are copied until each copy has as many query heads as the
      others: fewest query heads, at the price of a larger cache.
    - ``"pad"``: smaller groups are filled up to the largest with query heads that are not read:
      fewest key/value heads.

    Args:
        params: the layer, separate parameters.
        keep: ``(N,)`` booleans, True for the heads that stay; none may be True: the layer that is
            left adds its output bias alone. Needed outside ``jax.jit``, since it decides shapes.
        uneven: ``"raise"``, ``"repeat"`` or ``"pad"``.

    Returns:
        The smaller layer. With groups of one size its heads are those kept, in their order.

    Example:
        >>> w_q, w_k, w_o = jnp.ones((8, 4, 2)), jnp.ones((8, 2, 2)), jnp.ones((4, 2, 8))
        >>> params = MultiHeadParams(w_q, w_k, w_k, w_o)
        >>> prune_heads(params, np.array([True, True, False, False])).w_k.shape
        (8, 1, 2)
        >>> prune_heads(params, np.array([True, True, False, True]), uneven="repeat").w_k.shape
        (8, 3, 2)
        >>> prune_heads(params, np.array([True, True, False, True]), uneven="pad").w_q.shape
        (8, 4, 2)
    """
    check_params(params)
    check(uneven in _UNEVEN, "uneven", f"one of {', '.join(_UNEVEN)}", repr(uneven))
    check_boolean(keep, "keep", "booleans, True for the heads that stay")
    num_heads, num_kv_heads = params.w_q.shape[1], params.w_k.shape[1]
    what = "values known outside jax.jit, since they decide shapes"
    check(not isinstance(keep, jax.core.Tracer), "keep", what, "a traced array")
    kept = np.asarray(keep)
    what = f"one for each head, axes (N,) = ({num_heads},)"
    check(kept.shape == (num_heads,), "keep", what, f"shape {kept.shape}")
    group = num_heads // max(num_kv_heads, 1)
    queries, keys, is_read = _selection(np.reshape(kept, (num_kv_heads, group)), uneven)

    def taken(name: str, heads: np.ndarray, axis: int) -> Array | None:
        array: Array | None = getattr(params, name)
        return None if array is None else jnp.take(array, heads, axis=axis)

    of_heads = {"q": queries, "k": keys, "v": keys}
    given: dict[str, Any] = {f"w_{x}": taken(f"w_{x}", heads, 1) for x, heads in of_heads.items()}
    given |= {f"b_{x}": taken(f"b_{x}", heads, 0) for x, heads in of_heads.items()}
    w_o = jnp.take(params.w_o, queries, axis=0)
    if not is_read.all():
        w_o = w_o * jnp.asarray(is_read, w_o.dtype)[:, None, None]
    return params._replace(w_o=w_o, **given)


def prune_model(params: Model, keep: Array | np.ndarray, *, uneven: str = "raise") -> Model:
    """Return a model without some of its heads; each layer as :func:`prune_heads` does it.

    Args:
        params: of a model of this package: its ``layers`` have parameters ``attention``.
        keep: ``(L, N)`` booleans, True for the heads that stay.
        uneven: as in :func:`prune_heads`.

    Returns:
        The smaller model, to be run without gates. Its layers may differ in their numbers of heads.

    Example:
        >>> from mha_book.models.tiny import TinyLayer, TinyParams
        >>> layer = MultiHeadParams(*[jnp.ones((4, 2, 1))] * 3, jnp.ones((2, 1, 4)))
        >>> params = TinyParams(None, None, (TinyLayer(None, layer),) * 2, None, None)
        >>> smaller = prune_model(params, np.array([[True, False], [False, False]]))
        >>> [layer.attention.w_q.shape[1] for layer in smaller.layers]
        [1, 0]
    """
    check_boolean(keep, "keep", "booleans, True for the heads that stay")
    _check_rows(params, keep, "keep")
    return _changed(params, lambda layer, row: prune_heads(layer, row, uneven=uneven), keep)


@checked
def fold_gates(params: Model, gates: Float[Array, "L N"]) -> Model:
    """Return a model that does without gates what ``params`` does with gates ``(L, N)``.

    The gate of a head becomes a factor of its output projection; the closed head is still computed.
    """
    _check_rows(params, gates, "gates")

    def fold(layer: MultiHeadParams, factors: Array) -> MultiHeadParams:
        what = f"one factor for each head, axes (L, N) = {(len(gates), len(layer.w_o))}"
        check(factors.shape == layer.w_o.shape[:1], "gates", what, f"shape {gates.shape}")
        return layer._replace(w_o=layer.w_o * factors.astype(layer.w_o.dtype)[:, None, None])

    return _changed(params, fold, gates)


@checked
def mean_ablation(
    params: Model, keep: Float[Array, "L N"], head_means: Float[Array, "L N C"]
) -> Model:
    r"""Return a model that, with its gates ``keep``, puts means in the place of ablated heads.

    The output bias of each layer grows by $\sum_h (1 - g_h)\, \bar O^h W_O^h$, what
    the closed heads add on average. A head that does the same everywhere is not missed then, while
    closing it alone would shift what later layers read.

    Args:
        params: of a model of this package: its ``layers`` have parameters ``attention``.
        keep: ``(L, N)``, the gates that the model will be run with.
        head_means: ``(L, N, C)``, the mean output of every head over text.

    Returns:
        The model, every layer with an output bias.

    Example:
        >>> from mha_book.models.tiny import TinyLayer, TinyParams
        >>> layer = MultiHeadParams(*[jnp.ones((4, 2, 1))] * 3, jnp.ones((2, 1, 4)))
        >>> params = TinyParams(None, None, (TinyLayer(None, layer),), None, None)
        >>> means = jnp.array([[[3.0], [5.0]]])
        >>> without = mean_ablation(params, jnp.array([[1.0, 0.0]]), means)
        >>> without.layers[0].attention.b_o.tolist()
        [5.0, 5.0, 5.0, 5.0]
    """
    _check_rows(params, keep, "keep")

    def add_means(layer: MultiHeadParams, gates: Array, means: Array) -> MultiHeadParams:
        what = f"axes (L, N, C) with N, C = {layer.w_o.shape[:2]}"
        check(means.shape == layer.w_o.shape[:2], "head_means", what, f"shape {head_means.shape}")
        factors = (widen(x) for x in (1 - gates, means, layer.w_o))
        bias = jnp.einsum("n,nc,ncd->d", *factors)
        bias = bias if layer.b_o is None else bias + widen(layer.b_o)
        return layer._replace(b_o=bias.astype(layer.w_o.dtype))

    return _changed(params, add_means, keep, head_means)


def _check_rows(params: Any, array: Any, name: str) -> None:
    check_model(params)
    what = f"a row for each of the {len(params.layers)} layers, axes (L, N)"
    check(array.ndim == 2 and len(array) == len(params.layers), name, what, f"shape {array.shape}")


def _changed(params: Model, change: Callable[..., MultiHeadParams], *arrays: Any) -> Model:
    """Return the model with what ``change`` makes of each layer and its rows of the arrays."""
    model: Any = params
    layers = tuple(
        layer._replace(attention=change(layer.attention, *rows))
        for layer, *rows in zip(model.layers, *arrays, strict=True)
    )
    changed: Model = model._replace(layers=layers)
    return changed


def _selection(kept: np.ndarray, uneven: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the query heads, the key/value heads, and which of the query heads are read.

    ``kept`` is ``(K, G)``.
    """
    queries = np.arange(kept.size).reshape(kept.shape)
    sizes = kept.sum(1)
    keys = np.flatnonzero(sizes)
    if len(set(sizes[keys].tolist())) > 1:
        what = "key/value heads left with equally many query heads each"
        check(uneven != "raise", "keep", what, f"{sizes.tolist()}; see uneven")
        if uneven == "repeat":
            keys = np.repeat(keys, sizes[keys] // math.gcd(*sizes[keys].tolist()))
        else:  # the heads that stay first, then as many others as are needed
            first = np.argsort(~kept, axis=1, kind="stable")[:, : sizes.max()]
            filled = np.sort(np.take_along_axis(queries, first, 1)[keys], axis=1).ravel()
            return filled, keys, kept.ravel()[filled]
    chosen = queries[kept]
    return chosen, keys, np.ones(chosen.shape, bool)
