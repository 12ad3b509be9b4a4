r"""A head read from its weights: the QK circuit, the OV circuit, and where a score comes from.

Queries and keys meet in scores alone, so $W_Q$ and $W_K$ matter through $W_{QK} = W_Q W_K^\top$
alone, the **QK circuit**: how well an input matches another. Values and output projection matter
through $W_{OV} = W_V W_O$, the **OV circuit**: what an attended input adds. Between embeddings,
both become tables from token to token. A score is bilinear, so it is also a sum over pairs of what
was written to the residual stream before: **exact QK attribution**.

Shapes: ``A`` and ``S`` inputs, ``V`` tokens, ``P`` parts of the residual stream, ``T`` tokens,
``N`` heads, ``K`` key/value heads, ``H`` width of a head, ``D`` width of the model.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_size, check_type, checked
from mha_book.layers import linear, rms_norm
from mha_book.models.smollm2 import SmolLM2Config, SmolLM2Params
from mha_book.multihead.grouped import kv_head_index
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.rope import rotary_angles, rotate

__all__ = ["copying_score", "logit_lens", "ov_circuit", "qk_attribution", "qk_circuit"]


def head_weights(params: MultiHeadParams, head: int) -> tuple[Array, Array, Array, Array]:
    """Return $W_Q$, $W_K$, $W_V$ ``(D, H)`` and $W_O$ ``(H, D)`` of one query head."""
    check_type(params, "params", MultiHeadParams)
    heads = params.w_q.shape[1]
    check_size(head, "head", 0)
    check(head < heads, "head", f"less than {heads}", head)
    shared = kv_head_index(heads, params.w_k.shape[1])[head]
    return params.w_q[:, head], params.w_k[:, shared], params.w_v[:, shared], params.w_o[head]


@checked
def qk_circuit(
    params: MultiHeadParams,
    head: int,
    queries: Float[Array, "A D"],
    keys: Float[Array, "S D"],
    *,
    offset: int | Int[Array, ""] = 0,
    theta: float | None = None,
) -> Float[Array, "A S"]:
    r"""Return the scores of inputs against inputs, $q\, W_Q R\, W_K^\top k^\top / \sqrt H$.

    Args:
        params: a layer.
        head: the query head.
        queries: ``(A, D)``, such as normalized embeddings of tokens.
        keys: ``(S, D)``.
        offset: how many places the key stands after the query: -1 for the token before.
        theta: base of the rotary positions; None for a model without, ``R`` the identity.

    Returns:
        ``(A, S)``: rows are queries.

    Example:
        >>> layer = MultiHeadParams(*[jnp.ones((2, 1, 1))] * 3, jnp.ones((1, 1, 2)))
        >>> qk_circuit(layer, 0, jnp.eye(2), 3 * jnp.eye(2)).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    w_q, w_k, _, _ = head_weights(params, head)
    query, key = queries @ w_q, keys @ w_k
    if theta is not None:
        angles = rotary_angles(-jnp.asarray(offset)[None], w_q.shape[1], theta)
        query = rotate(query, jnp.broadcast_to(angles, (len(query), angles.shape[-1])))
    scores: Array = query @ key.T / w_q.shape[1] ** 0.5
    return scores


@checked
def ov_circuit(
    params: MultiHeadParams, head: int, inputs: Float[Array, "A D"], readout: Float[Array, "V D"]
) -> Float[Array, "A V"]:
    r"""Return what attending to an input adds to each token's logit, $x W_V W_O u$.

    Args:
        params: a layer.
        head: the query head.
        inputs: ``(A, D)``, normalized.
        readout: ``(V, D)``, a direction of the residual stream for each token: its output
            embedding, times the gain of the last norm.

    Example:
        >>> layer = MultiHeadParams(*[jnp.ones((2, 1, 1))] * 3, jnp.array([[[5.0, 7.0]]]))
        >>> ov_circuit(layer, 0, jnp.array([[1.0, 0.0]]), jnp.eye(2)).tolist()
        [[5.0, 7.0]]
    """
    _, _, w_v, w_o = head_weights(params, head)
    return inputs @ w_v @ (w_o @ readout.T)


@checked
def copying_score(
    params: MultiHeadParams, head: int, inputs: Float[Array, "V D"], readout: Float[Array, "V D"]
) -> float:
    r"""Return $\sum \lambda / \sum |\lambda|$ of the OV circuit from all tokens to all tokens.

    1 where the head raises what it attends to, -1 where it lowers it. The ``V × V`` matrix has the
    eigenvalues of an ``H × H`` one besides zeros, since $MN$ and $NM$ share theirs.

    Args:
        params: a layer.
        head: the query head.
        inputs: ``(V, D)``, normalized embeddings.
        readout: ``(V, D)``, as in :func:`ov_circuit`.

    References:
        Elhage et al., A mathematical framework for transformer circuits, 2021.

    Example:
        >>> layer = MultiHeadParams(*[jnp.ones((2, 1, 1))] * 3, -jnp.ones((1, 1, 2)))
        >>> copying_score(layer, 0, jnp.eye(2), jnp.eye(2))
        -1.0
    """
    _, _, w_v, w_o = head_weights(params, head)
    small = (w_o @ readout.T) @ (inputs @ w_v)
    values = np.linalg.eigvals(np.asarray(small, np.float64))
    return float(values.sum().real / np.abs(values).sum())


@checked
def logit_lens(
    params: SmolLM2Params, stream: Float[Array, "*batch D"], *, config: SmolLM2Config
) -> Float[Array, "*batch V"]:
    """Return the logits that the model would give if its layers ended here.

    Args:
        params: the weights.
        stream: ``(…, D)``, the residual stream anywhere in the model.
        config: the sizes.

    References:
        nostalgebraist, Interpreting GPT: the logit lens, 2020.

    Example:
        >>> from mha_book.models.smollm2 import CONFIG
        >>> params = SmolLM2Params(jnp.eye(2), (), jnp.ones(2))
        >>> logit_lens(params, jnp.array([3.0, 0.0]), config=CONFIG).round(3)
        Array([1.414, 0.   ], dtype=float32)
    """
    normalized = rms_norm(stream, params.output_norm, config.epsilon)
    return linear(normalized, params.token_embedding.T)


def residual_parts(
    params: SmolLM2Params, kept: dict[str, Array], before: int
) -> Float[Array, "P B T D"]:
    """Return what was written to the stream before a layer: the embedding, heads and MLPs.

    Args:
        params: the weights.
        kept: from :func:`~mha_book.specialization.patching.activations`.
        before: the number of a layer; ``L`` for all.

    Returns:
        ``(1 + before · (N + 1), B, T, D)``, named by :func:`part_names`; their sum is the stream.
    """
    parts = [kept["residual"][:1]]
    for number in range(before):
        w_o = params.layers[number].attention.w_o
        parts.append(jnp.einsum("bntc,ncd->nbtd", kept["heads"][number], w_o))
        parts.append(kept["mlp"][number][None])
    return jnp.concatenate(parts)


def part_names(before: int, num_heads: int) -> list[str]:
    """Return the names of parts: ``embedding``, ``L0H0`` and so on, ``L0MLP``.

    Example:
        >>> part_names(1, 2)
        ['embedding', 'L0H0', 'L0H1', 'L0MLP']
    """
    ends = [*(f"H{head}" for head in range(num_heads)), "MLP"]
    return ["embedding", *(f"L{number}{end}" for number in range(before) for end in ends)]


@checked
def qk_attribution(
    params: MultiHeadParams,
    head: int,
    parts: Float[Array, "P T D"],
    gain: Float[Array, " D"],
    *,
    epsilon: float,
    theta: float,
) -> tuple[Float[Array, "P T H"], Float[Array, "P T H"]]:
    r"""Return what each part of the stream puts into a head's queries and keys.

    The norm's scale is that of the whole stream, so all is linear. The score of query ``i`` and key
    ``j`` is the sum of ``query[:, i] @ key[:, j].T``, whose entry ``(p, r)`` is the share of part
    ``p`` asking and part ``r`` answering.

    Args:
        params: a layer.
        head: the query head.
        parts: ``(P, T, D)`` of one sequence; their sum is the stream that enters the layer.
        gain: ``(D,)``, the weight of the norm before it.
        epsilon: of the norm.
        theta: base of the rotary positions.

    Returns:
        Parts of the rotated queries, over $\sqrt H$, and of the keys, ``(P, T, H)`` each.

    Example:
        >>> layer = MultiHeadParams(*[jnp.ones((2, 1, 2))] * 3, jnp.ones((1, 2, 2)))
        >>> parts = jnp.array([[[1.0, 1.0]], [[-1.0, 1.0]]]) / 2
        >>> query, key = qk_attribution(layer, 0, parts, jnp.ones(2), epsilon=0.0, theta=1e4)
        >>> (query[:, 0] @ key[:, 0].T).round(3)
        Array([[2.828, 0.   ],
               [0.   , 0.   ]], dtype=float32)
    """
    w_q, w_k, _, _ = head_weights(params, head)
    power = jnp.mean(jnp.square(parts.sum(0)), -1, keepdims=True)
    scaled = parts * (gain[None] / jnp.sqrt(power + epsilon))[None]
    angles = rotary_angles(jnp.arange(parts.shape[1]), w_q.shape[1], theta)
    query, key = rotate(scaled @ w_q, angles), rotate(scaled @ w_k, angles)
    return query / w_q.shape[1] ** 0.5, key
