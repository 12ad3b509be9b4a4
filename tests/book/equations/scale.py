"""The executed equations of the chapter on the scale."""

import numpy as np

from tests.book.equations import executed


@executed("sdpa-aligned")
def aligned(rng):
    d_k, rho = 11, 0.3
    q = rng.normal(size=d_k)
    q *= np.sqrt(d_k) / np.linalg.norm(q)
    aside = rng.normal(size=d_k)
    aside -= aside @ q / d_k * q
    aside *= np.sqrt(d_k) / np.linalg.norm(aside)
    k = rho * q + np.sqrt(1 - rho**2) * aside
    return {"rho": rho, "d_k": d_k}, {"s": q @ k / np.sqrt(d_k)}
