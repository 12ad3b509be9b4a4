"""Small models with random weights where the trained ones do not matter: quick to make and compile.

Their vectors are as narrow as may be; what a caller leaves out of the sizes shares no factor.
"""

import zlib
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.models import minilm, smollm2
from mha_book.multihead.parameters import MultiHeadParams


def random_like(shapes: Any, scale: float = 0.4, seed: int = 0) -> Any:
    """A tree of these shapes; the gains of norms are around 1."""
    rng = np.random.default_rng(seed)

    def leaf(path, like):
        is_gain = "norm" in (name := jax.tree_util.keystr(path)) and "bias" not in name
        return jnp.asarray(is_gain + scale * rng.standard_normal(like.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def small_smollm2(**sizes: int) -> smollm2.SmolLM2:
    """A SmolLM2 of these sizes, whose tokens are characters."""
    given = {"num_layers": 2, "num_heads": 6, "num_kv_heads": 3, "head_dim": 10, "d_model": 7}
    config = smollm2.CONFIG._replace(**{**given, "vocab_size": 101, **sizes})
    d, n, k, h, f = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim, 11

    def shape(*axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(axes, jnp.float32)

    projections = (shape(d, n, h), shape(d, k, h), shape(d, k, h), shape(n, h, d))
    layer = smollm2.SmolLM2Layer(
        shape(d), MultiHeadParams(*projections), shape(d), shape(d, f), shape(d, f), shape(f, d)
    )
    form = smollm2.SmolLM2Params(
        shape(config.vocab_size, d), (layer,) * config.num_layers, shape(d)
    )

    def encode(text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=[config.pad_id, *(1 + ord(c) % 97 for c in text)])

    return smollm2.SmolLM2(random_like(form), config, SimpleNamespace(encode=encode))


def small_minilm(**sizes: int) -> minilm.MiniLM:
    """A MiniLM of these sizes, whose tokens are words."""
    given = {"vocab_size": 101, "d_model": 14, "d_hidden": 11}
    config = minilm.CONFIG._replace(**{**given, **sizes})
    form = jax.eval_shape(lambda: minilm.init_minilm(jax.random.key(0), config))

    def encode(text: str) -> SimpleNamespace:
        words = (3 + zlib.crc32(word.encode()) % (config.vocab_size - 3) for word in text.split())
        return SimpleNamespace(ids=[1, *words, 2])

    return minilm.MiniLM(random_like(form), config, SimpleNamespace(encode=encode))
