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
    alterations=("sign", "half the angle", "length"),
)
def own_key(rng, altered):
    length = float(rng.uniform(200, 300))
    angle = (1 if altered == "half the angle" else 2) * np.pi * np.arange(KEYS) / KEYS
    factor = length / (2 if altered == "length" else 1)
    sign = -1 if altered == "sign" else 1
    found = 1 / np.exp(-factor * (1 - sign * np.cos(angle)) + (altered == "sign") * factor).sum()
    return own_weights(length), np.full(KEYS, found)


@tested(
    "em-factor",
    latex=r"""\omega \approx \frac{\log 18}{1 - \cos(2 \pi / n)}
    \approx \frac{n^2 \log 18}{2 \pi^2}""",
    alterations=("one neighbor", "power"),
    tolerance=2e-3,
)
def factor(rng, altered):
    low, high = 1.0, 1e5
    for _ in range(60):  # the least length that gives every query nine tenths on its own key
        middle = (low + high) / 2
        low, high = (middle, high) if own_weights(middle).min() < 0.9 else (low, middle)
    needed = np.log(9 if altered == "one neighbor" else 18)
    power = KEYS ** (1 if altered == "power" else 2)
    first = needed / (1 - np.cos(2 * np.pi / KEYS))
    return [high, high], [first, power * needed / (2 * np.pi**2)]
