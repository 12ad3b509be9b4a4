"""The executed and the tested equations of the chapter on devices."""

import jax
import jax.numpy as jnp

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


@executed("acc-reuse")
def reuse(rng):
    """The two products of a block of queries, over the keys and values that pass by."""
    rows, keys, width, size = 3, 7, 5, 2
    queries = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)
    passing = [jax.ShapeDtypeStruct((keys, width), jnp.bfloat16)] * 2
    counted = traced_matmul_flops(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, queries, *passing)
    given = {"n_rows": rows, "S": keys, "H": width, "n_bytes": size}
    return given, {"I_tile": counted / (size * 2 * keys * width)}
