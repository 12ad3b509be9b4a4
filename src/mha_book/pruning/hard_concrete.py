r"""Gates that are learned: random, differentiable, and exactly 0 or 1 much of the time.

A hard concrete gate is a sigmoid of noise, stretched beyond 0 and 1 and cut off there:
$g = \min(1, \max(0, s\,(\zeta - \gamma) + \gamma))$ with
$s = \operatorname{sigmoid}((\log u - \log(1 - u) + \log\alpha)/\beta)$, $u$ uniform on (0, 1),
$\gamma < 0$ and $\zeta > 1$. It is open, $g \ne 0$, with the probability
$\operatorname{sigmoid}(\log\alpha - \beta \log(-\gamma/\zeta))$, which has a gradient: a training
minimises the loss with drawn gates plus a price times the expected number of open gates.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mha_book._checks import as_key, check, check_floating, check_share, check_size, widen

__all__ = ["HardConcrete"]

BETA = 2 / 3
"""The temperature of Louizos et al.: the lower, the closer to 0 and 1."""
GAMMA = -0.1
"""The lower end of the stretched sigmoid."""
ZETA = 1.1
"""Its upper end."""


class HardConcrete(NamedTuple):
    r"""Random gates between 0 and 1, a pytree whose one leaf is trained.

    Args:
        log_alpha: $\log\alpha$, of any shape: ``(L, N)`` for the heads of a model.

    References:
        Louizos et al., Learning sparse neural networks through L0 regularization, 2018;
        Voita et al., Analyzing multi-head self-attention, 2019.

    Example:
        >>> gates = HardConcrete(jnp.array([-20.0, 0.0, 20.0]))
        >>> gates.deterministic().tolist(), gates.open_probability().round(3).tolist()
        ([0.0, 0.5, 1.0], [0.0, 0.832..., 1.0])
        >>> gates.sample(jax.random.key(0))[jnp.array([0, 2])].tolist()
        [0.0, 1.0]
    """

    log_alpha: Float[Array, "*heads"]

    @classmethod
    def init(cls, shape: tuple[int, ...], probability: float = 0.95) -> "HardConcrete":
        """Return gates, in float32, that are open with a given probability between 0 and 1."""
        check_share(probability, "probability")
        check(isinstance(shape, (tuple, list)), "shape", "a tuple of sizes", repr(shape))
        for size in shape:
            check_size(size, "shape", 0, "a tuple of sizes")
        logit = math.log(probability / (1 - probability))
        return cls(jnp.full(shape, logit + BETA * math.log(-GAMMA / ZETA), jnp.float32))

    def sample(self, rng_key: Key[Array, ""]) -> Float[Array, "*heads"]:
        """Draw gates; where they are not 0 or 1 they have a gradient in ``log_alpha``."""
        log_alpha = self._checked()
        noise = jax.random.logistic(as_key(rng_key), log_alpha.shape, log_alpha.dtype)
        return _stretched(jax.nn.sigmoid((noise + log_alpha) / BETA))

    def open_probability(self) -> Float[Array, "*heads"]:
        """Return the probability that each gate is not 0."""
        return jax.nn.sigmoid(self._checked() - BETA * math.log(-GAMMA / ZETA))

    def expected_l0(self) -> Float[Array, ""]:
        """Return the expected number of open gates; a training adds it, times a price."""
        return jnp.sum(widen(self.open_probability()))

    def deterministic(self) -> Float[Array, "*heads"]:
        """Return the gates to use after training, without noise; what is 0 can be removed."""
        return _stretched(jax.nn.sigmoid(self._checked()))

    def _checked(self) -> Array:
        check_floating(self.log_alpha, "log_alpha")
        return self.log_alpha


def _stretched(share: Array) -> Array:
    return jnp.clip(share * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)
