r"""What attention costs: parameters, FLOPs and the bytes of the KV cache.

Every count is an exact integer, and its name has the unit. One of the floating-point operations
(FLOPs) is an addition or a multiplication: a product of an $m \times k$ with a $k \times n$ matrix
has $2mkn$. Only matrix products are counted, since they are nearly all of it; the softmax, the
norms and the rotations are not. FLOPs over the bytes read and written are the *arithmetic
intensity*.

The formulas are plain arithmetic. They are held to what a program really does: the matrix products
in its trace (:func:`traced_matmul_flops`) and in what is compiled (:func:`compiled_matmul_flops`).
Nothing is run and no array is made: :class:`jax.ShapeDtypeStruct` serves as argument, so that a
layer of any size can be counted. Of the package this module imports the checks alone.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``H`` width of queries
and keys, ``C`` width of values, ``B`` sequences, ``T`` queries, ``S`` keys.
"""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from mha_book._checks import check, check_flag, check_function, check_size, check_type

__all__ = [
    "LayerSize",
    "attention_size",
    "compiled_matmul_flops",
    "forward_matmul_flops",
    "kv_cache_bytes",
    "latent_size",
    "traced_matmul_flops",
    "visible_pair_count",
]


class LayerSize(NamedTuple):
    """What the cost of an attention layer depends on.

    Args:
        num_heads: ``N``.
        weight_count: entries of the projection matrices; each multiplies every position once.
        bias_count: entries of their biases.
        pair_width: multiplications for one query, one key and one head.
        cache_width: elements that the KV cache keeps of every position.
    """

    num_heads: int
    weight_count: int
    bias_count: int
    pair_width: int
    cache_width: int

    @property
    def parameter_count(self) -> int:
        """Entries of the projections with their biases; norms and sinks are not among them."""
        return self.weight_count + self.bias_count


def attention_size(
    d_model: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    *,
    has_input_biases: bool = False,
    has_output_bias: bool = False,
) -> LayerSize:
    r"""Return the size of a layer with multi-head, grouped or multi-query attention.

    $DNH + DKH + DKC + NCD$ weights, of which $4D^2$ remain for $K = N$ and $NH = NC = D$;
    $H + C$ multiplications for a pair and head; $K(H + C)$ numbers in the cache.

    The sizes are ``D``, ``N``, ``K``, ``H`` and ``C``. Where not given, ``K`` is ``N``, ``H`` is
    ``D / N``, which must then be whole, and ``C`` is ``H``. Queries, keys and values have biases,
    and the output has one, where that is said.

    Example:
        >>> attention_size(512, 8).parameter_count
        1048576
    """
    k = num_heads if num_kv_heads is None else num_kv_heads
    check_flag(has_input_biases, "has_input_biases")
    check_flag(has_output_bias, "has_output_bias")
    d_model, num_heads, k = _sizes(d_model=d_model, num_heads=num_heads, num_kv_heads=k)
    if head_dim is None:
        check(d_model % num_heads == 0, "num_heads", f"a divisor of d_model = {d_model}", num_heads)
        head_dim = d_model // num_heads
    value_dim = head_dim if value_dim is None else value_dim
    head_dim, value_dim = _sizes(head_dim=head_dim, value_dim=value_dim)
    check(num_heads % k == 0, "num_kv_heads", f"a divisor of num_heads = {num_heads}", k)
    pair_width = head_dim + value_dim
    heads_width = num_heads * head_dim + k * pair_width  # columns that make queries, keys, values
    biases = heads_width * bool(has_input_biases) + d_model * bool(has_output_bias)
    weights = d_model * (heads_width + num_heads * value_dim)
    return LayerSize(num_heads, weights, biases, pair_width, k * pair_width)


def latent_size(
    d_model: int,
    num_heads: int,
    latent_dim: int,
    head_dim: int,
    rotary_dim: int,
    value_dim: int,
    query_latent_dim: int | None = None,
    *,
    is_absorbed: bool,
) -> LayerSize:
    """Return the size of a layer with latent attention, see :mod:`mha_book.multihead.latent`.

    Both forms have the same parameters and the same cache, ``R + P`` numbers a position. For a
    pair and head the expanded form multiplies ``H + P + C`` times, the absorbed ``2R + P`` times;
    ``is_absorbed`` says which it is. The sizes are ``D``, ``N``, ``R``, ``H``, ``P``, ``C`` and
    ``Q`` there; without ``query_latent_dim`` the queries are made from the input.

    Example:
        >>> latent_size(7168, 128, 512, 128, 64, 128, 1536, is_absorbed=True).cache_width
        576
    """
    check_flag(is_absorbed, "is_absorbed")
    into = d_model if query_latent_dim is None else query_latent_dim
    d_model, num_heads, latent_dim, head_dim, rotary_dim, value_dim, into = _sizes(
        d_model=d_model, num_heads=num_heads, latent_dim=latent_dim, head_dim=head_dim,
        rotary_dim=rotary_dim, value_dim=value_dim, query_latent_dim=into,
    )  # fmt: skip
    check(rotary_dim % 2 == 0, "rotary_dim", "an even number, for pairs to rotate", rotary_dim)
    query = into * num_heads * (head_dim + rotary_dim)
    query += 0 if query_latent_dim is None else d_model * into
    latent = d_model * (latent_dim + rotary_dim)
    from_latent = latent_dim * num_heads * (head_dim + value_dim)
    weights = query + latent + from_latent + num_heads * value_dim * d_model
    pair = 2 * latent_dim + rotary_dim if is_absorbed else head_dim + rotary_dim + value_dim
    return LayerSize(num_heads, weights, 0, pair, latent_dim + rotary_dim)


def forward_matmul_flops(size: LayerSize, *, token_count: int = 0, pair_count: int = 0) -> int:
    """Return the FLOPs of self-attention: two for each weight and position, ``2N(H + C)`` a pair.

    With ``token_count`` alone these are the projections, with ``pair_count`` alone the scores and
    averages. Forward and backward pass together have three times as many: each product has two
    factors, and the gradient of each is a product of the same size.

    Args:
        size: the layer.
        token_count: positions that go through the projections: ``B·T``, or ``B`` for one more token
            of each sequence.
        pair_count: pairs of a query with a key: ``B·T·S`` where an implementation computes all
            scores and masks some, ``B`` times :func:`visible_pair_count` for the work needed.

    Example:
        >>> forward_matmul_flops(attention_size(4, 2), token_count=1, pair_count=10)
        288
    """
    _check_layer(size)
    token_count, pair_count = _sizes(least=0, token_count=token_count, pair_count=pair_count)
    of_pairs = pair_count * size.num_heads * size.pair_width
    return 2 * (token_count * size.weight_count + of_pairs)


def kv_cache_bytes(size: LayerSize, *, position_count: int, bytes_per_element: int) -> int:
    """Return the bytes of one layer's KV cache for ``position_count`` = ``B·S`` positions.

    ``K(H + C)`` elements for each position; the latent form keeps ``R + P``. Where a window limits
    what is seen, ``S`` is at most the window.

    Example:
        >>> llama_3_8b = attention_size(4096, 32, 8)
        >>> kv_cache_bytes(llama_3_8b, position_count=1, bytes_per_element=2)
        4096
    """
    _check_layer(size)
    (position_count,) = _sizes(least=0, position_count=position_count)
    (bytes_per_element,) = _sizes(bytes_per_element=bytes_per_element)
    return position_count * size.cache_width * bytes_per_element


def visible_pair_count(query_length: int, key_length: int, window: int | None = None) -> int:
    """Return how many pairs causal attention has; the last query stands at the last key.

    Args:
        query_length: ``T``; ``T(T + 1)/2`` pairs for ``T = S`` without a window.
        key_length: ``S``, at least ``T``.
        window: how many keys a query sees at most, its own included, as everywhere; None for all.

    Example:
        >>> visible_pair_count(4, 4), visible_pair_count(1, 9), visible_pair_count(4, 4, window=2)
        (10, 9, 7)
    """
    window = key_length if window is None else window
    query_length, key_length, window = _sizes(
        least=0, query_length=query_length, key_length=key_length, window=window
    )
    check(key_length >= query_length, "key_length", f"at least {query_length} keys", key_length)
    first = key_length - query_length + 1  # keys that the first query sees
    growing = max(0, min(key_length, window) - first + 1)  # queries that see all there is
    growing_pairs = growing * (2 * first + growing - 1) // 2
    return growing_pairs + (query_length - growing) * window


def _sizes(*, least: int = 1, **sizes: int) -> list[int]:
    """Return the sizes, checked, as Python's integers: a product of NumPy's may overflow."""
    what = "a positive integer" if least else "0 or a positive integer"
    for name, size in sizes.items():
        check_size(size, name, least, what)
    return [int(size) for size in sizes.values()]


def _check_layer(size: Any) -> None:
    check_type(size, "size", LayerSize, "as attention_size gives it")
    _sizes(least=0, **{f"size.{name}": field for name, field in size._asdict().items()})


def traced_matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Return the FLOPs of all matrix products in the trace of ``function(*args)``.

    Functions called inside are counted where they are called, the body of a ``scan`` as often as
    it runs, that of a ``shard_map`` on every device; a ``while`` has no number of rounds in its
    trace, and is refused.

    Args:
        function: any function that JAX can trace.
        args: its arguments, arrays or shapes.

    Raises:
        NotImplementedError: a product is in a ``while``, a branch of a ``cond`` or a Pallas kernel,
            or is a convolution.

    Example:
        >>> x = jax.ShapeDtypeStruct((3, 5), "float32")
        >>> traced_matmul_flops(lambda x: x @ x.T, x)
        90
    """
    check_function(function, "function", "that JAX can trace")
    return _jaxpr_flops(jax.make_jaxpr(function)(*args).jaxpr)


def compiled_matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Return the FLOPs of all ``dot`` operations in the program compiled for this machine.

    The arguments are those of :func:`traced_matmul_flops`.

    Raises:
        NotImplementedError: the program has a loop, or a call to a library that may hide products.

    Example:
        >>> x = jax.ShapeDtypeStruct((3, 5), "float32")
        >>> compiled_matmul_flops(lambda x: x @ x.T, x)
        90
    """
    check_function(function, "function", "that JAX can trace")
    return _program_flops(str(jax.jit(function).lower(*args).compile().as_text()))


def _jaxpr_flops(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in ("dot_general", "ragged_dot_general"):
            total += _product_flops(equation)
            continue
        if name == "conv_general_dilated":
            raise NotImplementedError("a convolution is not counted")
        by_platform = params.get("branches_platforms") is not None
        inner = sum(_jaxpr_flops(part) for part in _jaxprs(_of_this_machine(params)))
        if inner and name in ("while", "cond", "pallas_call") and not by_platform:
            raise NotImplementedError(f"products inside {name} are not counted")
        if name == "scan":
            inner *= params["length"]
        elif name == "shard_map":  # what each of its devices does
            axes = params.get("newly_manual_axes") or params["manual_axes"]  # as JAX calls them
            inner *= math.prod(params["mesh"].shape[axis] for axis in axes)
        total += inner
    return total


def _product_flops(equation: Any) -> int:
    ragged = equation.params.get("ragged_dot_dimension_numbers")
    numbers = ragged.dot_dimension_numbers if ragged else equation.params["dimension_numbers"]
    (contracted, _), _ = numbers
    result = math.prod(equation.outvars[0].aval.shape)
    if ragged and set(ragged.lhs_ragged_dimensions) <= set(contracted):
        result //= equation.invars[2].aval.shape[-1]  # each group sums a part of the rows
    summed = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return int(2 * result * summed)


def _of_this_machine(params: dict[str, Any]) -> dict[str, Any]:
    """Of branches by platform keep the one that the default backend takes."""
    platforms = params.get("branches_platforms")
    if platforms is None:
        return params
    here = {"gpu": ("cuda", "rocm")}.get(jax.default_backend(), (jax.default_backend(),))
    for branch, names in zip(params["branches"], platforms, strict=True):
        if names is None or set(names) & set(here):
            return {"branches": (branch,)}
    return params


def _jaxprs(params: dict[str, Any]) -> list[Any]:
    """Return the traces among the parameters of an equation; derivative rules are functions."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            item = getattr(item, "jaxpr", item)
            if hasattr(item, "eqns"):
                found.append(item)
    return found


_RESULT = re.compile(r"^\s*(?:ROOT )?(%[\w.-]+) = \w+\[([\d,]*)\]", re.M)
_DOT = re.compile(r"^\s*(?:ROOT )?%[\w.-]+ = \w+\[([\d,]*)\]\S* dot\([^%]*(%[\w.-]+)(.*)$", re.M)


def _program_flops(text: str) -> int:
    """Count the products in the text of a compiled program."""
    for hidden in ("while", "custom-call"):
        if f" {hidden}(" in text:
            raise NotImplementedError(f"a program with a {hidden} is not counted")
    shapes = dict(_RESULT.findall(text))
    total = 0
    for result, left, rest in _DOT.findall(text):
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
        axes = _numbers(contracted[1]) if contracted else []
        summed = math.prod(_numbers(shapes[left])[axis] for axis in axes)
        total += 2 * math.prod(_numbers(result)) * summed
    return total


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
