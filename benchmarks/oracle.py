"""Attention and its gradient in float64 NumPy, a few hundred query rows at a time.

What every timed output is checked against.  It shares no code with the package.
"""

import numpy as np

__all__ = ["attention_float64"]


def _weights(scores: np.ndarray, first_row: int, is_causal: bool) -> np.ndarray:
    """Softmax over the last axis; row i of a causal block sees the keys j ≤ i."""
    if is_causal:
        rows = first_row + np.arange(scores.shape[0])[:, None]
        scores = np.where(np.arange(scores.shape[1])[None, :] <= rows, scores, -np.inf)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention_float64(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    is_causal: bool,
    cotangent: np.ndarray | None = None,
    block: int = 512,
) -> tuple[np.ndarray, ...]:
    r"""Scaled dot-product attention, heads first, and its gradients on request.

    With $P = \mathrm{softmax}(Q K^\top / \sqrt{H})$, $O = P V$ and the cotangent $\bar O$:

    $$ \bar V = P^\top \bar O, \quad
       \bar S = P \circ (\bar O V^\top - \mathrm{rowsum}(\bar O \circ O)), \quad
       \bar Q = \bar S K / \sqrt{H}, \quad \bar K = \bar S^\top Q / \sqrt{H} $$

    Args:
        query: (B, N, T, H).
        key: (B, N, S, H).
        value: (B, N, S, C).
        is_causal: query i sees the keys j ≤ i.
        cotangent: (B, N, T, C) or None.
        block: how many query rows are held at a time.

    Returns:
        (output,), or with a cotangent (output, query, key and value gradients).
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    scale = 1 / np.sqrt(q.shape[-1])
    output = np.zeros(q.shape[:-1] + v.shape[-1:])
    gradients = tuple(np.zeros_like(x) for x in (q, k, v))
    bar = None if cotangent is None else np.asarray(cotangent).astype(np.float64)
    for head in np.ndindex(q.shape[:2]):
        for start in range(0, q.shape[2], block):
            rows = (*head, slice(start, start + block))
            weights = _weights(q[rows] @ k[head].T * scale, start, is_causal)  # (rows, S)
            output[rows] = weights @ v[head]
            if bar is None:
                continue
            inner = (bar[rows] * output[rows]).sum(axis=-1, keepdims=True)
            scores = weights * (bar[rows] @ v[head].T - inner) * scale
            gradients[0][rows] = scores @ k[head]
            gradients[1][head] += scores.T @ q[rows]
            gradients[2][head] += weights.T @ bar[rows]
    return (output,) if bar is None else (output, *gradients)
