"""The executed and the tested equations of the chapter on what heads cost."""

import jax
import jax.numpy as jnp

from mha_book import (
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
)
from mha_book.costs import traced_matmul_flops
from mha_book.multihead.layer import project_heads
from tests.book.equations import executed, tested

T, N, K, H, C, D = 7, 6, 3, 5, 2, 11  # positions, heads, key heads, widths of key, value, model


def shapes(n=N, k=K, h=H, c=C, d=D):
    return jax.eval_shape(
        lambda key: init_multi_head(key, d, n, num_kv_heads=k, head_dim=h, value_dim=c),
        jax.random.key(0),
    )


def kept(part, params=None):
    """Keys and values, or scores, as the layer makes them for one sequence."""
    x, params = jax.ShapeDtypeStruct((T, D), jnp.float32), params or shapes()
    if part == "cache":
        return [jax.eval_shape(project_heads, x, w) for w in (params.w_k, params.w_v)]
    _, inside = jax.eval_shape(multi_head_attention_with_intermediates, params, x)
    return inside.weights


@tested(
    "cost-roofline",
    latex=r"""\begin{aligned}
I &= \frac{F}{M_{\text{moved}}} \\
\frac{F}{\max(F/v_{\text{op}},\; M_{\text{moved}}/v_{\text{mem}})}
&= \min(v_{\text{op}},\; I\,v_{\text{mem}})
\end{aligned}""",
)
def roofline(rng):
    flops, moved = rng.uniform(1, 50, 20), rng.uniform(1, 50, 20)
    longest = [max(f / 11, m / 3) for f, m in zip(flops, moved, strict=True)]
    return flops / longest, [min(11.0, 3 * i) for i in flops / moved]


@executed("cost-parameters")
def parameters(rng):
    return {"D": D, "N": N, "K": K, "H": H, "C": C}, {
        "P": float(sum(x.size for x in jax.tree.leaves(shapes())))
    }


@executed("cost-square")
def square(rng):
    return {"D": 42}, {
        "P": float(sum(x.size for x in jax.tree.leaves(shapes(n=6, k=6, h=7, c=7, d=42))))
    }


@executed("cost-flops")
def flops(rng):
    x = jax.ShapeDtypeStruct((T, D), jnp.float32)
    counted = traced_matmul_flops(multi_head_attention, shapes(), x)
    given = {
        "T": T,
        "S": T,
        "P": sum(x.size for x in jax.tree.leaves(shapes())),
        "N": N,
        "H": H,
        "C": C,
    }
    return given, {"F": float(counted)}


@executed("cost-balance")
def balance(rng):
    n, k, h, c, d, s = 6, 3, 5, 2, 10, 15  # a size at which both parts of the count are equal
    x = jax.ShapeDtypeStruct((s, d), jnp.float32)
    weights = sum(x.size for x in jax.tree.leaves(shapes(n, k, h, c, d)))
    assert traced_matmul_flops(multi_head_attention, shapes(n, k, h, c, d), x) == 4 * s * weights
    return {"P": weights, "N": n, "H": h, "C": c}, {"S": float(s)}


@executed("cost-bytes")
def memory(rng):
    counted = {
        part: 4.0 * sum(x.size for x in jax.tree.leaves(kept(part))) for part in ("cache", "scores")
    }
    given = {"n_bytes": 4, "S": T, "T": T, "K": K, "N": N, "H": H, "C": C}
    return given, {f"M_{part}": count for part, count in counted.items()}
