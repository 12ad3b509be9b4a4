"""The tested equations of the chapter on how heads come to their roles."""

import jax.numpy as jnp
import numpy as np

from mha_book import attention_weights
from tests.book.equations import tested

KEYS = 61  # on a circle


def on_circle(n):
    turn = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(turn), np.sin(turn)], -1)


def own_weights(length):
    """What every query gives its own key, by the package; queries have this length."""
    keys = on_circle(KEYS)
    weights = attention_weights(jnp.asarray(length * keys), jnp.asarray(keys), scale=1.0)
    return np.diag(np.asarray(weights, np.float64))


@tested(
    "em-own-key",
    latex=r"""A^{00} = \frac{1}{\sum_{j=0}^{n-1} e^{-\omega \left(1 - \cos(2 \pi j / n)\right)}}""",
)
def own_key(rng):
    length = float(rng.uniform(200, 300))
    angle = 2 * np.pi * np.arange(KEYS) / KEYS
    found = 1 / np.exp(-length * (1 - np.cos(angle))).sum()
    return own_weights(length), np.full(KEYS, found)


@tested(
    "em-factor",
    latex=r"""\omega \approx \frac{\log 18}{1 - \cos(2 \pi / n)}
    \approx \frac{n^2 \log 18}{2 \pi^2}""",
    tolerance=2e-3,
)
def factor(rng):
    low, high = 1.0, 1e5
    for _ in range(60):  # the least length that gives every query nine tenths on its own key
        middle = (low + high) / 2
        low, high = (middle, high) if own_weights(middle).min() < 0.9 else (low, middle)
    first = np.log(18) / (1 - np.cos(2 * np.pi / KEYS))
    return [high, high], [first, KEYS**2 * np.log(18) / (2 * np.pi**2)]
