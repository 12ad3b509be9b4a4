"""The displayed equations of the chapter on splitting and combining heads."""

import math

import jax.numpy as jnp
import numpy as np

from mha_book.heads import combine_heads, split_heads
from mha_book.multihead import project_heads
from tests.equations import tested

T, N, H, D = 3, 5, 2, 7  # positions, heads, features a head, features of the input
SIZES = [(length, heads) for length in (1, 2, 3, 5, 7, 9) for heads in (1, 2, 3, 4, 6, 7)]


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def wrong_split(x, num_heads):
    length, features = x.shape
    return x.reshape(num_heads, length, features // num_heads)


@tested(
    "split-columns",
    latex=r"X W_Q = \begin{pmatrix} X W_Q^0 & \cdots & X W_Q^{N-1} \end{pmatrix}",
    alterations=("order", "interleaved"),
)
def split_columns(rng, altered):
    x, w_q = draw(rng, T, D), draw(rng, D, N * H)
    blocks = [w_q[:, h * H : (h + 1) * H] for h in range(N)]
    if altered == "order":
        blocks = blocks[::-1]
    if altered == "interleaved":
        blocks = [w_q[:, h::N] for h in range(N)]
    return x @ w_q, np.concatenate([x @ block for block in blocks], axis=1)


@tested(
    "split-projection",
    latex=r"""\begin{aligned}
        Q^{hia} &= \sum_{b=0}^{D-1} X^{ib}\, W_Q^{hba}, \\
        W_Q^{hba} &= W_Q^{b(hH+a)}
        \end{aligned}""",
    alterations=("sum", "index", "transpose"),
)
def split_projection(rng, altered):
    x, w_q = draw(rng, T, D), draw(rng, D, N * H)
    left = project_heads(jnp.asarray(x), jnp.asarray(w_q.reshape(D, N, H)))
    w = np.asarray(split_heads(jnp.asarray(w_q), N))  # W_Q^{hba}
    if altered == "index":
        w = np.stack([w_q[:, h::N] for h in range(N)])
    if altered == "transpose":
        w = wrong_split(w_q, N)
    features = D - 1 if altered == "sum" else D
    right = np.zeros((N, T, H))
    for h, i, a in np.ndindex(N, T, H):
        right[h, i, a] = sum(x[i, b] * w[h, b, a] for b in range(features))
    return left, right


@tested(
    "split-index", latex=r"X'^{hia} = X^{i(hH+a)}", alterations=("shift", "interleaved", "straight")
)
def split_index(rng, altered):
    x = draw(rng, T, N * H)
    right = np.zeros((N, T, H))
    for h, i, a in np.ndindex(N, T, H):
        feature = {None: h * H + a, "shift": (h * H + a + 1) % (N * H), "interleaved": a * N + h}
        right[h, i, a] = x[i, feature.get(altered, 0)]
    if altered == "straight":
        right = wrong_split(x, N)
    return split_heads(jnp.asarray(x), N), right


@tested(
    "split-identity",
    latex=r"""\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}
        \;\longmapsto\;
        \begin{pmatrix} 1 \\ 0 \end{pmatrix},
        \begin{pmatrix} 0 \\ 1 \end{pmatrix}""",
)
def split_identity(rng, altered):
    right = [[[1.0], [0.0]], [[0.0], [1.0]]]
    return split_heads(jnp.eye(2), 2), right[::-1] if altered else right


@tested(
    "split-wrong",
    latex=r"""\begin{aligned}
        \widetilde X^{hia} &= X^{j(gH+a)}, \\
        j &= \left\lfloor \frac{hT+i}{N} \right\rfloor, \\
        g &= (hT+i) \bmod N
        \end{aligned}""",
    alterations=("right", "offset"),
)
def split_wrong(rng, altered):
    x = draw(rng, T, N * H)
    right = np.zeros((N, T, H))
    for h, i, a in np.ndindex(N, T, H):
        j, g = divmod(h * T + i, N)
        if altered == "right":
            j, g = i, h
        if altered == "offset":
            j, g = divmod((h * T + i + 1) % (N * T), N)
        right[h, i, a] = x[j, g * H + a]
    return wrong_split(x, N), right


@tested(
    "split-agree",
    latex=r"""\begin{aligned}
        &\#\left\{(h, i) : \widetilde X^{hi} = X'^{hi}\right\} \\
        &\qquad = \gcd(T-1,\, N-1) + 1
        \end{aligned}""",
)
def split_agree(rng, altered):
    left, right = [], []
    for length, heads in SIZES:
        x = np.arange(length * heads).reshape(length, heads)
        left.append((wrong_split(x, heads) == np.asarray(split_heads(jnp.asarray(x), heads))).sum())
        right.append(math.gcd(length, heads) if altered else math.gcd(length - 1, heads - 1) + 1)
    return left, right


@tested(
    "split-inverse",
    latex=r"""\begin{aligned}
        X^{im} &= X'^{hia}, \\
        h &= \left\lfloor \frac{m}{H} \right\rfloor, \quad a = m \bmod H
        \end{aligned}""",
    alterations=("interleaved", "straight"),
)
def split_inverse(rng, altered):
    heads = draw(rng, N, T, H)
    right = np.zeros((T, N * H))
    for i, m in np.ndindex(T, N * H):
        h, a = divmod(m, H)
        if altered == "interleaved":
            a, h = divmod(m, N)
        right[i, m] = heads[h, i, a]
    if altered == "straight":
        right = heads.reshape(T, N * H)
    return combine_heads(jnp.asarray(heads)), right


def addresses(array):
    """Where each entry lies, in entries from the first, as the strides have it."""
    steps = [step // array.itemsize for step in array.strides]
    return sum(step * np.indices(array.shape)[axis] for axis, step in enumerate(steps))


@tested(
    "split-address",
    latex=r"\operatorname{address}\left(X'^{hia}\right) = (iN + h)\,H + a",
    alterations=("copy", "width"),
)
def split_address(rng, altered):
    view = draw(rng, T, N * H).reshape(T, N, H).transpose(1, 0, 2)
    h, i, a = np.indices((N, T, H))
    right = {None: (i * N + h) * H + a, "copy": (h * T + i) * H + a, "width": (i * H + h) * N + a}
    return addresses(view), right[altered]


@tested(
    "split-address-copy",
    latex=r"\operatorname{address}\left(X'^{hia}\right) = (hT + i)\,H + a",
    alterations=("view", "heads"),
)
def split_address_copy(rng, altered):
    copy = np.ascontiguousarray(draw(rng, T, N * H).reshape(T, N, H).transpose(1, 0, 2))
    h, i, a = np.indices((N, T, H))
    right = {None: (h * T + i) * H + a, "view": (i * N + h) * H + a, "heads": (h * N + i) * H + a}
    return addresses(copy), right[altered]
