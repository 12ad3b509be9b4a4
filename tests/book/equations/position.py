"""The executed and the tested equations of the chapter on positions."""

import jax.numpy as jnp
import numpy as np

from mha_book import attend_with_lse, attention_weights, scaled_dot_product_attention
from mha_book.layers import rms_norm
from mha_book.rope import rotary_angles, rotate
from tests.book.equations import executed, tested

T, H, C, D = 5, 6, 7, 11
THETA = 50.0


def draw(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def scaled_scores(q, k):
    """What the package's softmax is taken of: log A + λ, with λ the log-sum-exp of the row."""
    _, lse = attend_with_lse(q, k, k, implementation="reference")
    return np.log(attention_weights(q, k)) + lse[:, None]


@executed("position-norm")
def norm(rng):
    x, weight, epsilon = draw(rng, T, D), draw(rng, D), 0.3
    arrays = {"X": x, "w": weight, "D": D, "epsilon": epsilon}
    return arrays, {"X_widehat": rms_norm(x, weight, epsilon)}


@executed("position-permuted")
def permuted(rng):
    q, k, v = draw(rng, T, H), draw(rng, T, H), draw(rng, T, C)
    order = np.array([3, 0, 4, 1, 2])  # not its own inverse
    moved = q[order], k[order], v[order]
    arrays = {"Pi": np.eye(T)[order], "d_k": H}
    arrays |= {"Q_bar": moved[0], "K_bar": moved[1], "V_bar": moved[2]}
    arrays |= {"S": scaled_scores(q, k), "A": attention_weights(q, k)}
    arrays |= {"O": scaled_dot_product_attention(q, k, v)}
    return arrays, {
        "S_bar": scaled_scores(*moved[:2]),
        "A_bar": attention_weights(*moved[:2]),
        "O_bar": scaled_dot_product_attention(*moved),
    }


@tested("position-angle", latex=r"\varphi^{ip} = i\, \omega^p, \qquad \omega^p = \theta^{-2p/H}")
def angle(rng):
    want = [[i * THETA ** (-2 * p / H) for p in range(H // 2)] for i in range(T)]
    return rotary_angles(jnp.arange(T), H, THETA), want


@executed("position-rotate")
def rotated(rng):
    q, angles = draw(rng, T, H), rotary_angles(jnp.arange(T), H, THETA)
    turned = rotate(q, angles)
    arrays = {"Q_0": q[:, 0::2], "Q_1": q[:, 1::2], "varphi": angles}
    return arrays, {"Q_tilde_0": turned[:, 0::2], "Q_tilde_1": turned[:, 1::2]}


def plane(turn):
    return np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])


@tested(
    "position-matrix",
    latex=r"""\bigl( R(i\omega)\, q \bigr)^{\!\top} R(j\omega)\, k
= q^\top R(i\omega)^\top R(j\omega)\, k
= q^\top R\bigl( (j - i)\omega \bigr)\, k""",
)
def matrix(rng):
    q, k, speed = rng.normal(size=2), rng.normal(size=2), 0.7
    left, middle, right = [], [], []
    for i in range(T):
        for j in range(3):
            turns = jnp.array([[i * speed], [j * speed]], jnp.float32)
            package = rotate(jnp.asarray([q, k], jnp.float32), turns)
            left += [float(package[0] @ package[1])] * 2
            one = plane(i * speed)
            middle.append(q @ one.T @ plane(j * speed) @ k)
            right.append(q @ plane((j - i) * speed) @ k)
    return left, np.stack((middle, right), -1).ravel()


@executed("position-relative")
def relative(rng):
    """The equation is given distances, the package positions; three queries, five keys."""
    q, k = draw(rng, 3, H), draw(rng, T, H)
    places = np.array([2, 31, 5]), np.array([7, 0, 4, 19, 3])
    turned = [
        rotate(x, rotary_angles(jnp.asarray(p), H, THETA))
        for x, p in zip((q, k), places, strict=True)
    ]
    speeds = THETA ** (-2 * np.arange(H // 2) / H)
    distances = places[0][:, None] - places[1][None, :]
    arrays = {"Q_0": q[:, 0::2], "Q_1": q[:, 1::2], "K_0": k[:, 0::2], "K_1": k[:, 1::2]}
    arrays |= {"Delta": distances[..., None] * speeds, "d_k": H}
    return arrays, {"S": scaled_scores(*turned)}


@tested(
    "position-cosines",
    latex=r"""S^{ij} = \frac{1}{\sqrt{d_k}} \sum_p \lVert Q^{ip} \rVert\, \lVert K^{jp} \rVert\,
\cos\bigl( (i - j)\, \omega^p + \psi^{ijp} \bigr)""",
)
def cosines(rng):
    q, k = draw(rng, H), draw(rng, H)
    angles = rotary_angles(jnp.arange(T), H, THETA)
    turned = [rotate(jnp.broadcast_to(x, (T, H)), angles) for x in (q, k)]
    want = np.zeros((T, T))
    for p in range(H // 2):
        pairs = [complex(float(x[2 * p]), float(x[2 * p + 1])) for x in (q, k)]
        psi = np.angle(pairs[0]) - np.angle(pairs[1])
        for i in range(T):
            for j in range(T):
                turn = (i - j) * THETA ** (-2 * p / H) + psi
                want[i, j] += abs(pairs[0]) * abs(pairs[1]) * np.cos(turn) / np.sqrt(H)
    return scaled_scores(*turned), want
