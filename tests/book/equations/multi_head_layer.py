"""The tested equation of the chapter on multi-head attention."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import init_multi_head, multi_head_attention_with_intermediates
from tests.book.equations import tested

T, N, H, C, D = 3, 5, 2, 7, 11  # positions, heads, features of a key, of a value, of the model


@tested(
    "layer-concat-sum",
    latex=r"""\operatorname{Concat}(O^1, \dots, O^N)\; W^O
= \begin{pmatrix} O^1 & \cdots & O^N \end{pmatrix}
\begin{pmatrix} W_O^1 \\ \vdots \\ W_O^N \end{pmatrix}
= \sum_h O^h W_O^h""",
)
def concat_is_a_sum(rng):
    params = init_multi_head(jax.random.key(3), D, N, head_dim=H, value_dim=C)
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    y, inside = multi_head_attention_with_intermediates(params, x)
    heads, w_o = (np.asarray(array) for array in (inside.head_outputs, params.w_o))
    concatenated = np.concatenate([*heads], axis=1) @ np.concatenate([w_o[n] for n in range(N)])
    total = sum(heads[n] @ w_o[n] for n in range(N))
    return np.stack([concatenated, y]), np.stack([total, total])
