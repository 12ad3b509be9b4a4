"""The exercises on building a language model: right answers, wrong ones with hints."""

import jax.numpy as jnp


def sees_the_future(model, ids):
    before, after = model(ids), model(jnp.asarray(ids).at[:, -1].add(1))
    return bool(abs(before - after)[:, :-1].max() > 1e-5)


def top_k(logits, k, otherwise=-jnp.inf):
    return jnp.where(logits >= jnp.sort(logits)[-k], logits, otherwise)


ANSWERS = [
    ("cache-elements", lambda b, k, h, n: 2 * b * k * h * n, "passed"),
    ("cache-elements", lambda b, k, h, n: b * k * h * n, "keys and values"),
    ("cache-elements", lambda b, k, h, n: 2 * k * h * n, "every block"),
    ("sees-the-future", sees_the_future, "passed"),
    ("sees-the-future", lambda model, ids: False, "a little"),
    ("sees-the-future", lambda model, ids: True, "only the past"),
    ("top-k", top_k, "passed"),
    ("top-k", lambda logits, k: top_k(logits, k, 0.0), "still has a probability"),
    ("top-k", lambda logits, k: jnp.where(logits <= jnp.sort(logits)[k - 1], logits, -jnp.inf),
     "the two least likely"),
]  # fmt: skip
