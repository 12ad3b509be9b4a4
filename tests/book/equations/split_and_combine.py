"""The executed and the tested equations of the chapter on splitting and combining heads."""

import jax.numpy as jnp
import numpy as np

from mha_book.conformance.mutants import CATALOG
from mha_book.conformance.oracle import heads
from mha_book.heads import combine_heads, split_heads
from mha_book.multihead.layer import project_heads
from tests.book.equations import executed, tested

T, N, H, D = 3, 5, 2, 7  # positions, heads, features a head, features of the input


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@tested(
    "split-wrong",
    latex=r"""\begin{aligned}
        \widetilde U^{hia} &= Z^{j(h'H+a)}, \\
        j &= \left\lfloor \frac{hT+i}{N} \right\rfloor, \\
        h' &= (hT+i) \bmod N
        \end{aligned}""",
)
def split_wrong(rng):
    x = draw(rng, T, N * H)
    right = np.zeros((N, T, H))
    for h, i, a in np.ndindex(N, T, H):
        j, g = divmod(h * T + i, N)
        right[h, i, a] = x[j, g * H + a]
    wrong_split = CATALOG["split-without-transpose"].steps["split"]
    return wrong_split(heads(x[None], N))[0], right


def addresses(array):
    """Where each entry lies, in entries from the first, as the strides have it."""
    steps = [step // array.itemsize for step in array.strides]
    return sum(step * np.indices(array.shape)[axis] for axis, step in enumerate(steps))


@tested("split-address", latex=r"\operatorname{address}\left(U^{hia}\right) = (iN + h)\,H + a")
def split_address(rng):
    view = draw(rng, T, N * H).reshape(T, N, H).transpose(1, 0, 2)
    h, i, a = np.indices((N, T, H))
    return addresses(view), (i * N + h) * H + a


@executed("split-projection")
def split_projection(rng):
    x, w_q = draw(rng, T, D), draw(rng, D, N * H)
    queries = project_heads(jnp.asarray(x), jnp.asarray(w_q.reshape(D, N, H)))
    return {"X": x, "W_Q": w_q, "H": H, "dims": {"h": N, "a": H}}, {"Q": queries}


@executed("split-index")
def split_index(rng):
    x = draw(rng, T, N * H)
    heads = split_heads(jnp.asarray(x), N)
    return {"Z": x, "H": H, "dims": {"h": N, "a": H}}, {"U": heads}


@executed("split-inverse")
def split_inverse(rng):
    heads = draw(rng, N, T, H)
    return {"U": heads, "H": H}, {"Z": combine_heads(jnp.asarray(heads))}
