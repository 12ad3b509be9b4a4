r"""A causal transformer small enough to train here: the layer of this package, norms before it.

Each layer computes, with $\operatorname{LN}$ the layer norm,

$X' = X + \operatorname{MHA}(\operatorname{LN}(X))$ and
$Y = X' + \operatorname{GELU}(\operatorname{LN}(X') W_1 + b_1)\, W_2 + b_2$.

Shapes: ``B`` sequences, ``T`` tokens, ``L`` layers, ``N`` heads, ``D`` width, ``V`` vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from mha_book._checks import check
from mha_book.layers import affine, gelu, layer_norm
from mha_book.models._inputs import check_gates, check_tokens
from mha_book.models.records import LayerRecord
from mha_book.models.tiny_params import TinyConfig, TinyLayer, TinyParams, init_tiny
from mha_book.multihead import multi_head_attention
from mha_book.rope import rotary_angles

__all__ = ["angles", "forward", "loss", "token_losses"]
__all__ += ["TinyConfig", "TinyParams", "init_tiny"]  # of the module tiny_params


def forward(
    params: TinyParams,
    token_ids: Int[Array, "B T"],
    *,
    config: TinyConfig,
    gates: Float[Array, "L N"] | None = None,
    rng_key: Key[Array, ""] | None = None,
    implementation: str | None = None,
    return_intermediates: bool = False,
) -> Any:
    """Return the logits of the next token at every position.

    Args:
        params: the weights.
        token_ids: ``(B, T)``; an id beyond the vocabulary gives NaN.
        config: the sizes and the rates of dropout.
        gates: ``(L, N)``, one factor for the output of each head; None for ones.
        rng_key: PRNG key of the dropout, split over the layers; None for no dropout whatever the
            rates are, as outside training.
        implementation: passed to :func:`~mha_book.dispatch.attend`.
        return_intermediates: whether to return a record of every layer too. The logits do not
            change.

    Returns:
        Logits ``(B, T, V)``; with ``return_intermediates`` a pair of them and a tuple of
        :class:`~mha_book.models.records.LayerRecord`.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.
        NotImplementedError: the implementation that was named cannot serve.

    Example:
        >>> config = TinyConfig(vocab_size=7, d_model=8)
        >>> params = init_tiny(jax.random.key(0), config)
        >>> forward(params, jnp.array([[1, 2, 3]]), config=config).shape
        (1, 3, 7)
    """
    check_tokens(token_ids, None, longest=config.max_length)
    check_gates(gates, config.num_layers, config.num_heads)
    options: dict[str, Any] = {
        "angles": angles(config, token_ids),
        "dropout": None if rng_key is None else config.dropout,
        "implementation": implementation,
        "return_intermediates": return_intermediates,
    }
    keys = [None] * config.num_layers if rng_key is None else _split(rng_key, config.num_layers)
    embedding = params.token_embedding.at[token_ids]
    x = embedding.get(mode="fill", fill_value=jnp.nan)  # (B, T, D)
    if params.position_embedding is not None:
        x = x + params.position_embedding[: token_ids.shape[1]][None]
    records = []
    for i, layer in enumerate(params.layers):
        attended = multi_head_attention(
            layer.attention,
            layer_norm(x, *layer.attention_norm, config.epsilon),
            is_causal=True,
            gates=None if gates is None else gates[i],
            rng_key=keys[i],
            **options,
        )
        if return_intermediates:
            attended, inside = attended
            records.append(LayerRecord(x, inside))
        x = _feed_forward(layer, x + attended, config)
    x = layer_norm(x, *params.output_norm, config.epsilon)
    logits = affine(x, params.unembedding)  # (B, T, V)
    return (logits, tuple(records)) if return_intermediates else logits


def angles(config: TinyConfig, token_ids: Int[Array, "B T"]) -> Float[Array, "T pairs"] | None:
    """Return the angles that every layer rotates queries and keys by.

    Args:
        config: the sizes.
        token_ids: ``(B, T)``, of which only the length is used.

    Returns:
        ``(T, H/2)``, or None where positions are not rotary.

    Raises:
        ValueError: the width of a head is odd.

    Example:
        >>> angles(TinyConfig(vocab_size=7, positions="rotary"), jnp.zeros((1, 5), int)).shape
        (5, 8)
    """
    if config.positions != "rotary":
        return None
    head_dim = config.head_dim or config.d_model // config.num_heads
    return rotary_angles(jnp.arange(token_ids.shape[1]), head_dim, config.rope_theta)


def token_losses(
    params: TinyParams, token_ids: Int[Array, "B T"], *, config: TinyConfig, **options: Any
) -> Float[Array, "B T-1"]:
    """Return the negative log-likelihood of each token given those before it, in nats.

    Args:
        params: the weights.
        token_ids: ``(B, T)`` with ``T >= 2``; the first token is given, not predicted. The model
            sees ``T - 1`` tokens, so that ``T`` may exceed ``max_length`` by one.
        config: the sizes and the rates of dropout.
        **options: passed to :func:`forward`.

    Returns:
        ``(B, T - 1)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    Example:
        >>> config = TinyConfig(vocab_size=7, d_model=8)
        >>> params = init_tiny(jax.random.key(0), config)
        >>> token_losses(params, jnp.array([[1, 2, 3]]), config=config).shape
        (1, 2)
    """
    check_tokens(token_ids, None, longest=config.max_length + 1)
    check(token_ids.shape[1] > 1, "token_ids", "two tokens or more, axis T", token_ids.shape)
    logits = forward(params, token_ids[:, :-1], config=config, **options)
    log_probabilities = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(log_probabilities, token_ids[:, 1:, None], axis=-1)[..., 0]


def loss(
    params: TinyParams, token_ids: Int[Array, "B T"], *, config: TinyConfig, **options: Any
) -> Float[Array, ""]:
    """Return the mean of :func:`token_losses`.

    Args:
        params: the weights.
        token_ids: ``(B, T)`` with ``T >= 2``.
        config: the sizes and the rates of dropout.
        **options: passed to :func:`forward`.

    Returns:
        A scalar, in nats for each token; ``log(V)`` where the model knows nothing.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    Example:
        >>> config = TinyConfig(vocab_size=7, d_model=8)
        >>> params = init_tiny(jax.random.key(0), config)
        >>> bool(abs(loss(params, jnp.array([[1, 2, 3]]), config=config) - jnp.log(7)) < 0.5)
        True
    """
    return jnp.mean(token_losses(params, token_ids, config=config, **options))


def _split(rng_key: Array, count: int) -> list[Array]:
    return list(jax.random.split(rng_key, count))


def _feed_forward(layer: TinyLayer, x: Array, config: TinyConfig) -> Array:
    """Add the feed-forward part to the residual stream, where the layer has one."""
    if layer.feed_forward_norm is None or layer.widen is None or layer.narrow is None:
        return x
    normalised = layer_norm(x, *layer.feed_forward_norm, config.epsilon)
    return x + affine(gelu(affine(normalised, *layer.widen)), *layer.narrow)
