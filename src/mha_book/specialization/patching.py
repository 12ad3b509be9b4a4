r"""What a model does when some of its activations are those of another run.

A *hook* is called with every activation, ``hook(site, layer, array)``, and returns the one to go on
with. With gates $g$, one number for each activation, a hook that gives $g\,a + (1 - g)\,a'$ mixes
two runs. Everything here is a choice of $a'$: zeros (**zero-ablation**), means over other inputs
(**mean-ablation**), another input's activations (**resample-ablation**, and **activation
patching** where that input differs from this one in one respect). **Attribution patching** is the
derivative with respect to $g$. **Path patching** changes what one receiver reads of one sender.

Shapes: ``B`` sequences, ``T`` tokens, ``L`` layers, ``N`` heads, ``H`` width of a head, ``D`` width
of the model, ``V`` tokens in the vocabulary.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_function, checked
from mha_book.attention.reference import attention_weights
from mha_book.layers import linear, rms_norm
from mha_book.models import smollm2
from mha_book.models.smollm2 import CONFIG, SmolLM2Config, SmolLM2Layer, SmolLM2Params
from mha_book.multihead.grouped import repeat_kv_heads
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.rope import rotary_angles

__all__ = [
    "activation_patching",
    "activations",
    "attribution_patching",
    "hooked_forward",
    "path_patching",
]

Hook = Callable[[str, int, Array], Array]
ROUTES = ("query", "key", "value")


@checked
def hooked_forward(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    hook: Hook,
    *,
    config: SmolLM2Config = CONFIG,
) -> Float[Array, "B T V"]:
    """Return SmolLM2's logits with every activation as ``hook`` leaves it.

    Args:
        params: the weights.
        token_ids: ``(B, T)``.
        hook: is given ``"residual"`` ``(B, T, D)``, the stream that enters a layer; ``"query"``,
            ``"key"`` and ``"value"`` ``(B, N, T, H)``, one for each query head, rotated;
            ``"weights"`` ``(B, N, T, T)``; ``"heads"`` ``(B, N, T, H)``, before the output
            projection; and ``"mlp"`` ``(B, T, D)``, what the feed-forward part adds.
        config: the sizes.

    Returns:
        Logits ``(B, T, V)``: those of the model where ``hook`` returns what it is given.

    Example:
        >>> import jax
        >>> from mha_book.models.smollm2 import SmolLM2Config
        >>> config = SmolLM2Config(0, 1, 1, 2, 2, 3)
        >>> params = SmolLM2Params(jnp.ones((3, 2)), (), jnp.ones(2))
        >>> hooked_forward(params, jnp.zeros((1, 1), int), lambda *given: given[2], config=config)
        Array([[[1.99999, 1.99999, 1.99999]]], dtype=float32)
    """
    check_function(hook, "hook", "of a site, the number of a layer and an array")
    angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalized: Array) -> Array:
        every = project_qkv(repeat_kv_heads(layer.attention), normalized, angles=angles)
        query, key, value = map(hook, ROUTES, (number,) * 3, every)
        weights = hook("weights", number, attention_weights(query, key, is_causal=True))
        heads = hook("heads", number, jnp.matmul(weights, value))
        return project_output(layer.attention, heads)

    def feed_forward(number: int, layer: SmolLM2Layer, normalized: Array) -> Array:
        return hook("mlp", number, smollm2.feed_forward(number, layer, normalized))

    hidden = smollm2.hidden_states(
        params, token_ids, attention, config, feed_forward, partial(hook, "residual")
    )
    return linear(hidden, params.token_embedding.T)


def unchanged(site: str, layer: int, array: Array) -> Array:
    """Return the activation as it is."""
    return array


def activations(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    hook: Hook = unchanged,
    *,
    config: SmolLM2Config = CONFIG,
) -> tuple[Float[Array, "B T V"], dict[str, Array]]:
    """Return the logits, and the activations of every site of :func:`hooked_forward`, ``(L, …)``.

    Args:
        params: the weights.
        token_ids: ``(B, T)``.
        hook: as there; activations are kept as it leaves them.
        config: the sizes.

    Example:
        >>> import jax
        >>> from mha_book.models.smollm2 import SmolLM2Config
        >>> config = SmolLM2Config(0, 1, 1, 2, 2, 3)
        >>> params = SmolLM2Params(jnp.ones((3, 2)), (), jnp.ones(2))
        >>> activations(params, jnp.zeros((1, 1), int), config=config)[1]
        {}
    """
    kept: dict[str, list[Array]] = {}

    def keep(site: str, layer: int, array: Array) -> Array:
        kept.setdefault(site, []).append(hook(site, layer, array))
        return kept[site][-1]

    logits = hooked_forward(params, token_ids, keep, config=config)
    return logits, {site: jnp.stack(arrays) for site, arrays in kept.items()}


def mixed(site: str, gates: Array, others: Array) -> Hook:
    """Return the hook that gives ``gates * own + (1 - gates) * others`` at a site.

    ``gates`` ``(L, …)`` and ``others`` ``(L, …)`` broadcast against the activation of each layer:
    for single heads gates are ``(L, N, 1, 1)``, for the stream at single positions ``(L, T, 1)``.

    Example:
        >>> hook = mixed("heads", jnp.array([[0.0, 1.0]]), jnp.array([[5.0, 5.0]]))
        >>> hook("heads", 0, jnp.array([2.0, 3.0])).tolist()
        [5.0, 3.0]
    """

    def hook(name: str, layer: int, array: Array) -> Array:
        if name != site:
            return array
        gate, other = (jnp.broadcast_to(x[layer], array.shape) for x in (gates, others))
        return gate * array + (1 - gate) * other

    return hook


@checked
def activation_patching(
    metric: Callable[[Array], Array], gates: Float[Array, "*gates"]
) -> Float[Array, "*gates"]:
    """Return what a metric is with one gate at a time at 0, less what it is.

    Ablation is the same with other values behind the gates. One run for each gate.

    Args:
        metric: of gates, a scalar; a run with :func:`mixed`, for example.
        gates: where the model stands: ones for a run of its own.

    Example:
        >>> activation_patching(lambda gates: gates[0] * gates[1], jnp.array([2.0, 3.0])).tolist()
        [-6.0, -6.0]
    """
    check_function(metric, "metric", "of gates")
    whole = metric(gates)
    check(jnp.shape(whole) == (), "metric", "a function that returns a scalar", jnp.shape(whole))
    single = jnp.eye(gates.size, dtype=bool).reshape(-1, *gates.shape)
    patched: Array = jax.lax.map(
        lambda one: metric(jnp.where(one, jnp.zeros((), gates.dtype), gates)), single
    )
    return jnp.reshape(patched, gates.shape) - whole


@checked
def attribution_patching(
    metric: Callable[[Array], Array], gates: Float[Array, "*gates"]
) -> Float[Array, "*gates"]:
    r"""Return the estimate of :func:`activation_patching` by slope, $-g\, \partial m/\partial g$.

    One forward and one backward run for all gates together. The arguments are those of
    :func:`activation_patching`.

    References:
        Nanda, Attribution patching, 2023; with zeros behind the gates, Michel et al., 2019.

    Example:
        >>> attribution_patching(lambda gates: gates[0] * gates[1], jnp.array([2.0, 3.0])).tolist()
        [-6.0, -6.0]
    """
    check_function(metric, "metric", "of gates")
    slope: Array = jax.grad(metric)(gates)
    return -gates * slope


@checked
def path_patching(
    params: SmolLM2Params,
    residual: Float[Array, "B T D"],
    change: Float[Array, "B T D"],
    receiver: tuple[int, int],
    route: str,
    *,
    config: SmolLM2Config = CONFIG,
) -> Float[Array, "B T H"]:
    """Return what a receiver reads when one sender's output changes, by the direct path alone.

    What lies between the two stays as it was, so nothing but the receiver's norm and projection is
    computed. Put the result into a run by a hook to see what it causes.

    Args:
        params: the weights.
        residual: ``(B, T, D)``, the stream that enters the receiver's layer.
        change: ``(B, T, D)``, what the sender writes in the other run less what it writes here.
        receiver: layer and query head.
        route: ``"query"``, ``"key"`` or ``"value"``: Q-, K- or V-composition.
        config: the sizes.

    Returns:
        ``(B, T, H)``, rotated as in the model.

    References:
        Wang et al., Interpretability in the wild, 2023; Goldowsky-Dill et al., 2023.

    Example:
        >>> from mha_book import MultiHeadParams
        >>> from mha_book.models.smollm2 import SmolLM2Config
        >>> layer = MultiHeadParams(*[jnp.eye(2)[:, None]] * 3, jnp.eye(2)[None])
        >>> params = SmolLM2Params(None, (SmolLM2Layer(jnp.ones(2), layer, *[None] * 4),), None)
        >>> x, config = jnp.array([[[1.0, 0.0]]]), SmolLM2Config(1, 1, 1, 2, 2, 3)
        >>> path_patching(params, x, x[..., ::-1], (0, 0), "value", config=config).round(3).tolist()
        [[[1.0, 1.0]]]
    """
    check(route in ROUTES, "route", f"one of {', '.join(ROUTES)}", repr(route))
    number, head = receiver
    layer = params.layers[number]
    angles = rotary_angles(jnp.arange(residual.shape[1]), config.head_dim, config.rope_theta)
    normalized = rms_norm(residual + change, layer.attention_norm, config.epsilon)
    read = project_qkv(layer.attention, normalized, angles=angles)[ROUTES.index(route)]
    group = 1 if route == "query" else config.num_heads // config.num_kv_heads
    return read[:, head // group]
