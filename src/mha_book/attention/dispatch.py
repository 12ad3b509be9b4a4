"""Which implementation of attention runs where, and why.

The layers and models call :func:`attend` and nothing else. It checks its arguments once, makes one
record of them (:class:`~mha_book.attention.operands.Operands`), and hands that to the
implementation that :func:`select` names: a pure function of shapes, dtypes, the kind of mask, the
platform and what the caller wants, which also says why the others were passed over. A new
implementation is one more entry of :data:`IMPLEMENTATIONS` and is held to the reference by the
contract suite.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_float_dtype, check_rank, check_size, check_type
from mha_book.attention import blocks, blockwise, decode, gradient, jax_nn, reference, splash
from mha_book.attention.operands import (
    Operands,
    empty_result,
    prepare,
    varying_axes,
    with_compiler_sharding,
)
from mha_book.attention.platform import PLATFORMS, platform_of
from mha_book.heads import LAYOUTS, heads_first
from mha_book.masks import Mask

ALL, SOME, NONE = "all of them", "a block of them", "none of them"
CAPABILITIES = ("dropout_multiplier", "forward_mode", "lse")

__all__ = [
    "IMPLEMENTATIONS",
    "AttentionSpec",
    "attend",
    "attend_with_lse",
    "attention_spec",
    "choices",
    "select",
]


class AttentionSpec(NamedTuple):
    """What is asked of an implementation, without the arrays: all that :func:`select` looks at.

    Args:
        query_shape: ``(…, N, T, H)``, heads first whatever the layout of the arrays is.
        key_shape: ``(…, K, S, H)``.
        value_shape: ``(…, K, S, C)``.
        dtype: the name of the dtype of the operands, for example ``"float32"``.
        mask_kind: the :attr:`~mha_book.masks.Mask.kinds` of the mask.
        has_bias: whether an additive bias is given.
        platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``; any other name stands for "portable".
        wants: capabilities asked for, of "lse", "forward_mode" and "dropout_multiplier".
        compute_capability: of an NVIDIA GPU, for example ``(9, 0)``; None for any other device.
        is_partitioned: whether the compiler is to divide the operands among several devices.
        is_varying: whether a :func:`jax.shard_map` keeps track of the axes that they differ over.
        has_softcap: whether the scores are bounded.
    """

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    dtype: str
    mask_kind: frozenset[str] = frozenset()
    has_bias: bool = False
    platform: str = "cpu"
    wants: frozenset[str] = frozenset()
    compute_capability: tuple[int, ...] | None = None
    is_partitioned: bool = False
    is_varying: bool = False
    has_softcap: bool = False


class Selection(NamedTuple):
    """The implementation that serves a spec, and why those preferred to it cannot."""

    name: str  # a key of IMPLEMENTATIONS
    rejected: tuple[tuple[str, str], ...]  # pairs of a name and the reason it cannot serve


class Implementation(NamedTuple):
    """One way to compute attention."""

    run: Callable[..., tuple[Array, Array | None]]  # from Operands to output and log-sum-exp
    why_unsupported: Callable[[AttentionSpec], str | None] | None = None  # None: it serves all
    forward_mode: bool = True  # whether it can be differentiated in forward mode
    dropout_multiplier: bool = False  # whether it can multiply the weights, as dropout does
    scores_in_memory: str = ALL  # how much of the scores is in a device's memory at a time
    by_platform: bool = False  # whether run is to be told the platform, as its keyword
    is_cached: bool = True  # whether attend keeps its trace; a number as scale comes as an array


class Choice(NamedTuple):
    """One row of the table of :func:`choices`."""

    platform: str  # "cpu", "gpu" or "tpu"
    dtype: str  # of the operands
    mask: str  # the kinds of mask, in words
    length: int  # of queries and keys
    name: str  # of the implementation that is chosen
    scores_in_memory: str  # how much of the scores that holds in the device's memory at a time


def attend(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    layout: str | None = None,
    implementation: str | None = None,
    dropout_multiplier: Float[Array, "..."] | None = None,
    logit_softcap: float | None = None,
) -> Float[Array, "..."]:
    r"""Return $\operatorname{softmax}(Q K^\top \cdot \text{scale} + B)\, V$ for every head.

    The same operation as :func:`~mha_book.attention.reference.scaled_dot_product_attention`,
    computed by whichever implementation suits the operands and the device.

    Args:
        query: ``(…, N, T, H)`` in layout "NTH", ``(…, T, N, H)`` in layout "TNH"; ``(T, H)`` for
            one head.
        key: ``(…, K, S, H)`` or ``(…, S, K, H)``, with ``N`` a multiple of ``K``.
        value: ``(…, K, S, C)`` or ``(…, S, K, C)``.
        mask: a :class:`~mha_book.masks.Mask`, or a boolean array of the full rank
            ``(…, N, T, S)`` (each axis equal or 1) in either layout, True = attend.
        bias: added to the scaled scores, full rank ``(…, N, T, S)`` (each axis equal or 1).
        is_causal: whether query ``i`` may attend to keys ``j <= i`` only; for queries that start
            later in the sequence give ``mask=causal(query_offset=…)``.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        layout: "NTH" (heads before positions) or "TNH" (positions before heads, as in
            ``jax.nn``). None means "NTH", and refuses arrays of more heads than positions.
        implementation: a name of :data:`IMPLEMENTATIONS`, or None for the choice of
            :func:`select`, for the platform that the arrays are on; in a trace, for the one that
            JAX runs on by default, or that
            :func:`~mha_book.attention.platform.target_platform` names. A named implementation
            never falls back to another. "cudnn" has no forward mode (``jax.jvp``,
            ``jax.hessian``): where it would be chosen, name another.
        dropout_multiplier: multiplies the weights after the softmax, as dropout does; full rank
            ``(…, N, T, S)`` (each axis equal or 1). None for ones. Not every implementation can.
        logit_softcap: a number $c$; scaled scores become $c \tanh(S / c)$ before the bias is
            added (Gemma 2). None leaves them alone.

    Returns:
        The output in the layout of the query, ``(…, N, T, C)`` or ``(…, T, N, C)``, in the dtype of
        the inputs.

    Raises:
        NotImplementedError: the implementation that was named cannot serve; the message says why.

    Differs from:
        ``jax.nn.dot_product_attention``: heads first by default, a causal offset
        (:func:`~mha_book.masks.causal`), empty rows give zero, any value width.

    Example:
        >>> import jax.numpy as jnp
        >>> q = k = v = jnp.ones((2, 3, 4))  # two heads, three positions, width 4
        >>> attend(q, k, v, is_causal=True).shape
        (2, 3, 4)
    """
    return _attend(
        query, key, value, layout, implementation, False,
        mask=mask, bias=bias, is_causal=is_causal, scale=scale,
        dropout_multiplier=dropout_multiplier, logit_softcap=logit_softcap,
    )[0]  # fmt: skip


def attend_with_lse(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    layout: str | None = None,
    implementation: str | None = None,
    dropout_multiplier: Float[Array, "..."] | None = None,
    logit_softcap: float | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Return what :func:`attend` does, and the log-sum-exp of each row's scores.

    $\lambda^{hi} = \log \sum_j \exp S^{hij}$, by which results over parts of the keys can be joined
    (:mod:`~mha_book.attention.online_softmax`).

    The arguments are those of :func:`attend`. Not every implementation has a log-sum-exp; it is
    that of the scores, without a dropout multiplier.

    Returns:
        The output, and the log-sum-exp ``(…, N, T)`` in every layout, in float32 (float64 for
        float64 inputs), -inf for an empty row.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.zeros((1, 2, 4))  # two keys of score 0: log 2
        >>> attend_with_lse(x, x, x)[1].round(3).tolist()
        [[0.693..., 0.693...]]
    """
    output, lse = _attend(
        query, key, value, layout, implementation, True,
        mask=mask, bias=bias, is_causal=is_causal, scale=scale,
        dropout_multiplier=dropout_multiplier, logit_softcap=logit_softcap,
    )  # fmt: skip
    assert lse is not None  # of an implementation that was checked to have it
    return output, lse


def _attend(
    query: Array,
    key: Array,
    value: Array,
    layout: str | None,
    implementation: str | None,
    with_lse: bool,
    **options: Any,
) -> tuple[Array, Array | None]:
    operands = _prepare(query, key, value, layout, **options)
    is_one_head = operands.query.ndim == 2
    if is_one_head:  # implementations may count on an axis of heads
        operands = operands.with_head_axis()
    spec = _spec(operands, ("lse",) if with_lse else ())
    if implementation is not None:
        check_implementation(implementation, spec)
    name = select(spec).name if implementation is None else implementation
    run, *_, by_platform, is_cached = IMPLEMENTATIONS[name]
    lse: Array | None
    if operands.is_empty:
        output, lse = empty_result(operands)
    elif not is_cached:
        output, lse = with_compiler_sharding(run, operands)
    else:
        output, lse = _cached(operands, run, spec.platform if by_platform else None, with_lse)
    if is_one_head:
        output, lse = output[0], None if lse is None else lse[0]
    return heads_first(output, layout) if layout == "TNH" else output, lse


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _cached(
    operands: Operands, run: Callable[..., Any], platform: str | None, with_lse: bool
) -> tuple[Array, Array | None]:
    """Run an implementation; JAX keeps its trace for other calls of these shapes and structure."""
    run = run if platform is None else functools.partial(run, platform=platform)
    output, lse = with_compiler_sharding(run, operands)
    return output, lse if with_lse else None


def attention_spec(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    layout: str | None = None,
    wants: Collection[str] = (),
    **options: Any,
) -> AttentionSpec:
    """Return what :func:`attend` with these arguments asks for.

    The options are ``mask``, ``bias``, ``is_causal``, ``scale``, ``dropout_multiplier`` and
    ``logit_softcap``. ``wants`` says what the result is for: "lse" where the log-sum-exp is wanted
    too, "forward_mode" where it is to be differentiated in forward mode.

    Returns:
        The spec, for the platform that :func:`attend` would trace for.

    Example:
        >>> import jax.numpy as jnp
        >>> q = jnp.ones((2, 3, 4))
        >>> sorted(attention_spec(q, q, q, is_causal=True).mask_kind)
        ['causal']
    """
    known = ("mask", "bias", "is_causal", "scale", "dropout_multiplier", "logit_softcap")
    for name in options:
        check(name in known, name, f"an option of attend: {', '.join(known)}", name)
    _check_wants(wants)
    return _spec(_prepare(query, key, value, layout, **options), wants)


def select(spec: AttentionSpec) -> Selection:
    """Return the first implementation that serves, in the order of preference on the platform.

    The reference goes first for up to as many keys as a block has. For more of them ``blockwise``
    does on CPUs, and for few queries on CPUs and GPUs ``decode``: each is the fastest there
    (``benchmarks/``). On a TPU ``splash`` goes first for more keys than a block has and for more
    than a few queries, and ``blockwise`` where it cannot serve. In half precision ``jax.nn`` goes
    first on GPUs and, for fewer keys, on TPUs, since it keeps the products in half precision;
    before it, on an NVIDIA GPU, cuDNN, where it can and for more than a few queries. Neither
    splash attention nor cuDNN holds scores, and for many keys a log-sum-exp, a soft cap and packed
    sequences go by blocks on GPUs, slower there than the reference but in less memory. One H100
    was measured, and no TPU. On any other platform,
    "portable" among them, ``blockwise`` or the reference runs.

    Args:
        spec: what is asked; :func:`attention_spec` makes one from arrays.

    Returns:
        The selection, with the reasons of those that were preferred and cannot serve.

    Example:
        >>> select(AttentionSpec((2, 3, 4), (2, 3, 4), (2, 3, 4), "float64", platform="gpu")).name
        'reference'
    """
    check_type(spec, "spec", AttentionSpec, "as attention_spec gives it")
    check_type(spec.platform, "platform", str)
    _check_wants(spec.wants)
    rejected: list[tuple[str, str]] = []
    for name in _preferred(spec):
        reason = None if name == "reference" else _why_unsupported(name, spec)
        if reason is None:
            return Selection(name, tuple(rejected))
        rejected.append((name, reason))
    raise NotImplementedError(f"no implementation serves {spec}: {rejected}")


def choices(
    lengths: Sequence[int] = (256, 4096), dtypes: Sequence[str] = ("float32", "bfloat16")
) -> list[Choice]:
    """Return what is chosen on each platform, in each dtype, for each kind of mask and length.

    For eight heads of width 128, on a GPU of compute capability 9.0; for others ask
    :func:`select`.

    Args:
        lengths: of queries and keys.
        dtypes: of the operands.

    Example:
        >>> [row.name for row in choices([4096], ["bfloat16"]) if row.mask == "causal"]
        ['blockwise', 'cudnn', 'splash']
    """
    for length in lengths:
        check_size(length, "lengths", 1, "positive integers")
    for dtype in dtypes:
        check_float_dtype(dtype, "dtypes")
    kinds = ((), ("causal",), ("window",), ("band",), ("causal", "lengths"), ("array",))
    rows = []
    for platform, dtype, kind, length in itertools.product(PLATFORMS, dtypes, kinds, lengths):
        shape, capability = (8, length, 128), (9, 0) if platform == "gpu" else None
        spec = AttentionSpec(
            shape, shape, shape, dtype, frozenset(kind),
            platform=platform, compute_capability=capability,
        )  # fmt: skip
        name = select(spec).name
        mask, scores = ", ".join(kind) or "none", IMPLEMENTATIONS[name].scores_in_memory
        rows.append(Choice(platform, dtype, mask, length, name, scores))
    return rows


def check_implementation(name: str, spec: AttentionSpec) -> None:
    """Raise unless the implementation is known and serves the spec.

    ``ValueError`` if there is none of that name, ``NotImplementedError`` if it cannot serve.
    """
    known = ", ".join(IMPLEMENTATIONS)
    fits = isinstance(name, str) and name in IMPLEMENTATIONS
    check(fits, "implementation", f"one of {known}", repr(name))
    reason = _why_unsupported(name, spec)
    if reason is not None:
        what = "implementation: expected one that serves this call"
        raise NotImplementedError(f"{what}; got {name!r}: {reason}")


def _prepare(
    query: Array, key: Array, value: Array, layout: str | None, **options: Any
) -> Operands:
    """Bring the arrays to heads first and check them."""
    if layout is not None and layout not in LAYOUTS:
        check(False, "layout", f"one of {', '.join(LAYOUTS)}", repr(layout))
    if layout == "TNH":
        for array, name in ((query, "query"), (key, "key"), (value, "value")):
            check_rank(array, name, "(…, T, N, H)", 3)
        query, key, value = (heads_first(x, layout) for x in (query, key, value))
    operands = prepare(query, key, value, **options)
    if layout is None and query.ndim > 2:
        *_, heads, length, _ = query.shape
        known = isinstance(length, int) and isinstance(key.shape[-2], int)
        if known and heads > length > 0 and key.shape[-3] > key.shape[-2] > 0:
            what = '"TNH" for arrays (…, T, N, H) as in jax.nn, "NTH" for more heads than positions'
            check(False, "layout", what, f"None and a query of shape {tuple(query.shape)}")
    return operands


def _check_wants(wants: Any) -> None:
    known = isinstance(wants, Collection) and not isinstance(wants, str)
    fits = known and all(one in CAPABILITIES for one in wants)
    got = sorted(map(repr, wants)) if known else repr(wants)
    check(fits, "wants", f"some of {', '.join(CAPABILITIES)}", got)


def _spec(operands: Operands, wants: Collection[str]) -> AttentionSpec:
    query, key, value, mask, bias, _, multiplier, softcap = operands
    platform, capability = platform_of(query, key, value)
    wants = frozenset(wants if multiplier is None else {*wants, "dropout_multiplier"})
    return AttentionSpec(
        tuple(query.shape), tuple(key.shape), tuple(value.shape), str(query.dtype),
        frozenset() if mask is None else mask.kinds, bias is not None, platform, wants, capability,
        _is_partitioned(query), bool(varying_axes(query)), softcap is not None,
    )  # fmt: skip


def _is_partitioned(x: Array) -> bool:
    """Whether the compiler may divide an array: it lies on, or is traced for, several devices."""
    sharding: Any = getattr(x, "sharding", None)
    if not isinstance(x, jax.core.Tracer):
        return sharding is not None and sharding.num_devices > 1
    mesh = jax.typeof(x).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    return any(
        size > 1 and kind != jax.sharding.AxisType.Manual
        for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    )


def _preferred(spec: AttentionSpec) -> list[str]:
    """Return the names of implementations, best first; the reference, the last, serves all."""
    queries: Any = spec.query_shape[-2]
    keys: Any = spec.key_shape[-2]
    if not (isinstance(queries, int) and isinstance(keys, int)):
        return ["reference"]  # lengths that an exported program leaves open
    few, many = queries <= decode.FEW_QUERIES < keys, keys > blocks.KEYS
    is_half = spec.dtype in ("bfloat16", "float16")
    names = []
    if many and not few and spec.platform == "tpu":
        names.append("splash")
    if many and not few and spec.platform != "gpu":
        names.append("blockwise")  # on unknown platforms too
    if is_half and not few and spec.platform == "gpu":
        names.append("cudnn")
    if few and spec.platform in ("cpu", "gpu"):
        names.append("decode")
    without_cudnn = spec.has_softcap or "lse" in spec.wants or "segments" in spec.mask_kind
    if many and not few and spec.platform == "gpu" and without_cudnn:
        names.append("blockwise")  # XLA's form and the reference hold the scores
    if (is_half or many) and spec.platform in ("gpu", "tpu"):
        names.append("jax_nn")
    return [*names, "reference"]


def _why_unsupported(name: str, spec: AttentionSpec) -> str | None:
    """Return why the implementation cannot serve the spec, or None."""
    implementation = IMPLEMENTATIONS[name]
    if "forward_mode" in spec.wants and not implementation.forward_mode:
        return "it cannot be differentiated in forward mode"
    if "dropout_multiplier" in spec.wants and not implementation.dropout_multiplier:
        return "it cannot multiply the weights by factors, as dropout on them does"
    reason = implementation.why_unsupported
    return None if reason is None else reason(spec)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "jax_nn": Implementation(jax_nn.xla_attention, jax_nn.why_xla_unsupported),
    "cudnn": Implementation(
        jax_nn.cudnn_attention,
        jax_nn.why_cudnn_unsupported,
        forward_mode=False,
        scores_in_memory=NONE,
        is_cached=False,
    ),
    "splash": Implementation(
        splash.splash_attention, splash.why_unsupported, scores_in_memory=NONE, by_platform=True
    ),
    "reference": Implementation(reference.reference_attention, dropout_multiplier=True),
    # The backward pass by hand. The reference serves all that these do, so they run by name alone.
    "manual": Implementation(
        gradient.manual_attention, gradient.why_unsupported, dropout_multiplier=True
    ),
    "recompute": Implementation(
        gradient.recompute_attention, gradient.why_unsupported, dropout_multiplier=True
    ),
    "blockwise": Implementation(
        blockwise.blockwise_attention,
        blockwise.why_unsupported,
        scores_in_memory=SOME,
        by_platform=True,
    ),
    "decode": Implementation(decode.decode_attention, is_cached=False),
}
"""The implementations by name."""
