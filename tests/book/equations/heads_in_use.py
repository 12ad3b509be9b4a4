"""The executed equations of the chapter on heads in use."""

import jax.numpy as jnp

from mha_book import MultiHeadParams
from mha_book.specialization import composition, contribution
from tests.book.equations import executed

N, T, C, D, H = 3, 7, 5, 11, 2  # heads, positions, three widths


@executed("spec-share")
def share(rng):
    outputs, w_o = rng.normal(size=(1, N, T, C)), rng.normal(size=(N, C, D))
    towards = rng.normal(size=(1, T, D))
    found = contribution.direct_logit_attribution(
        *(jnp.asarray(x) for x in (outputs, w_o, towards))
    )
    return {"O": outputs[0], "W_O": w_o, "t": towards[0]}, {"zeta": found[0]}


@executed("spec-composition")
def composed(rng):
    shapes = ((D, 1, H), (D, 1, H), (D, 1, C), (1, C, D))
    one, other = (
        MultiHeadParams(*(jnp.asarray(rng.normal(size=s)) for s in shapes)) for _ in range(2)
    )
    writes = one.w_v[:, 0] @ one.w_o[0]
    reads = other.w_q[:, 0] @ other.w_k[:, 0].T
    found = composition.composition(one, other).key[0, 0]
    return {"Omega": writes, "Gamma": reads}, {"F": writes @ reads.T, "comp": float(found)}
