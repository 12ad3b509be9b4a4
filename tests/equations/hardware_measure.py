"""The executed and the tested equations of the chapter on attention on hardware: measurements."""

import jax
import jax.numpy as jnp

from mha_book.counting import entry_count, traced_matmul_flops
from tests.equations import executed, tested

T, N, H = 7, 3, 5  # positions, heads, their width


@tested(
    "hw-roofline",
    latex=r"""\begin{aligned}
\frac{F}{\max(F/P,\; M/W)} &= \min(P,\; I\,W) \\
I &= \frac{F}{M}
\end{aligned}""",
    alterations=("sign", "index"),
)
def roofline(rng, altered):
    best, moving = 11.0, 3.0  # P and W: the corner lies at 11/3
    operations = rng.uniform(1, 50, 20)
    moved = rng.uniform(1, 50, 20)
    longest = [max(f / best, m / moving) for f, m in zip(operations, moved, strict=True)]
    bound = max if altered == "sign" else min
    intensity = moved / operations if altered == "index" else operations / moved
    return operations / longest, [bound(best, i * moving) for i in intensity]


@executed("hw-intensity")
def intensity(rng):
    heads = jax.ShapeDtypeStruct((N, T, H), jnp.float32)
    inside = {}

    def attention(q, k, v):
        scores = q @ jnp.swapaxes(k, -1, -2)
        output = jax.nn.softmax(scores) @ v
        inside.update(scores=scores.shape, arrays=[x.shape for x in (q, k, v, output)])
        return output

    counted = traced_matmul_flops(attention, heads, heads, heads)
    numbers = [
        entry_count([jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])
        for shapes in (inside["arrays"], [inside["scores"]])
    ]
    moved = 4 * numbers[0]
    given = {"T": T, "N": N, "H": H, "b": 4, "w": 6}
    return given, {
        "I_blocks": counted / moved,
        "I_stored": counted / (moved + 6 * 4 * numbers[1]),
    }
