"""The executed and the tested equations of the chapter on attention on hardware."""

import jax
import jax.numpy as jnp

from mha_book import attend
from mha_book.costs import traced_matmul_flops
from tests.book.equations import executed, tested


@tested(
    "hw-roofline",
    latex=r"""\begin{aligned}
\frac{F}{\max(F/v_{\text{op}},\; M_{\text{moved}}/v_{\text{mem}})}
&= \min(v_{\text{op}},\; I\,v_{\text{mem}}) \\
I &= \frac{F}{M_{\text{moved}}}
\end{aligned}""",
)
def roofline(rng):
    best, moving = 11.0, 3.0  # the two rates: the corner lies at 11/3
    operations = rng.uniform(1, 50, 20)
    moved = rng.uniform(1, 50, 20)
    longest = [max(f / best, m / moving) for f, m in zip(operations, moved, strict=True)]
    return operations / longest, [min(best, i * moving) for i in operations / moved]


@executed("hw-intensity")
def intensity(rng):
    positions, heads, width = 7, 3, 5
    x = jax.ShapeDtypeStruct((heads, positions, width), jnp.float32)

    def scores(q, k):
        return q @ jnp.swapaxes(k, -1, -2)

    counted = traced_matmul_flops(lambda q, k, v: jax.nn.softmax(scores(q, k)) @ v, x, x, x)
    moved = 4 * 4 * x.size  # queries, keys, values and the output, in float32
    pairs = jax.eval_shape(scores, x, x).size
    given = {"T": positions, "N": heads, "H": width, "n_bytes": 4, "n_pass": 6}
    return given, {
        "I_blocks": counted / moved,
        "I_stored": counted / (moved + 6 * 4 * pairs),
    }


@executed("hw-ratio")
def ratio(rng):
    sizes = {"N": 6, "T": 13, "K": 3, "S": 5, "H": 7, "C": 11}
    n, t, k, s, h, c = sizes.values()
    q, key, value = (
        jax.ShapeDtypeStruct(x, jnp.float32) for x in ((n, t, h), (k, s, h), (k, s, c))
    )
    output = jax.eval_shape(attend, q, key, value)
    scores = jax.eval_shape(
        lambda q, k: jnp.einsum("hia,hja->hij", q, jnp.repeat(k, n // 3, 0)), q, key
    )
    operands = sum(x.size for x in jax.tree.leaves((q, key, value, output)))
    return sizes, {"n_ratio": sum(x.size for x in jax.tree.leaves(scores)) / operands}
