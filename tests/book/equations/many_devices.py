"""The executed and the tested equations of the chapter on many devices."""

from itertools import product

import jax.numpy as jnp
import numpy as np

from mha_book import attend_with_lse
from mha_book.sharding.mesh import MeshSizes
from mha_book.sharding.plan import plan_cost
from tests.book.equations import executed, tested


@executed("dev-merge")
def merged(rng):
    q, k, v = (jnp.asarray(rng.normal(size=(1, n, 5))) for n in (3, 28, 28))
    parts = [
        attend_with_lse(q, a, b)
        for a, b in zip(jnp.split(k, 4, axis=1), jnp.split(v, 4, axis=1), strict=True)
    ]
    outputs, sums = (jnp.stack([x[0] for x in of]) for of in zip(*parts, strict=True))
    output, lse = attend_with_lse(q, k, v)
    return {"lambda_part": sums, "O_part": outputs}, {"lambda_": lse[0], "O": output[0]}


@executed("dev-sent")
def sent(rng):
    sizes = {"batch": 1, "num_heads": 12, "num_kv_heads": 6, "length": 42, "head_dim": 5}
    sizes |= {"value_dim": 7, "d_model": 30, "bytes_per_element": 4}
    plans = {
        "M_tensor": plan_cost(**sizes, devices=MeshSizes(heads=3)),
        "M_ring": plan_cost(**sizes, devices=MeshSizes(sequence=3)),
        "M_Ulysses": plan_cost(**sizes, devices=MeshSizes(sequence=3), method="all_to_all"),
    }
    given = {"n_dev": 3, "n_bytes": 4, "T": 42, "D": 30, "N": 12, "K": 6, "H": 5, "C": 7}
    return given, {name: float(plan.sent_bytes) for name, plan in plans.items()}


@tested(
    "dev-hidden",
    latex=r"""\begin{aligned}
\frac{2 N (H + C)}{v_{\text{op}}} \Big(\frac{T}{n_{\text{dev}}}\Big)^2
&\ge \frac{n_{\text{bytes}} K (H + C)}{v_{\text{link}}}\, \frac{T}{n_{\text{dev}}}, \\[1ex]
\text{that is,}\quad \frac{T}{n_{\text{dev}}}
&\ge \frac{n_{\text{bytes}}}{2 G}\, \frac{v_{\text{op}}}{v_{\text{link}}}
\end{aligned}""",
)
def hidden(rng):
    """Which rings are hidden, by what the plan of each computes and sends, and by the formula."""
    operations, link, devices, size = 700.0, 3.0, 3, 2
    by_plan, by_formula = [], []
    sizes = {"batch": 1, "head_dim": 5, "value_dim": 11, "bytes_per_element": size}
    sizes["devices"] = MeshSizes(sequence=devices)
    for (heads, key_heads), positions in product(((5, 5), (10, 5), (14, 2)), range(7, 400, 2)):
        shape = {"num_heads": heads, "num_kv_heads": key_heads, "length": devices * positions}
        plan = plan_cost(**sizes, **shape)
        of_sends = plan.sent_bytes / link / (devices - 1)
        by_plan.append(float(plan.attention_flops / operations / devices >= of_sends))
        by_formula.append(float(positions >= size / (2 * heads / key_heads) * operations / link))
    assert 0 < np.mean(by_plan) < 1
    return by_plan, by_formula
