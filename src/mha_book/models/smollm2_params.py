"""The parameters of SmolLM2: their form, and how they are read from a GGUF file.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``H`` width of a head,
``F`` width inside the feed-forward part, ``V`` tokens in the vocabulary.
"""

import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mha_book.models._files import import_extra
from mha_book.parameters import MultiHeadParams

__all__ = [
    "CONFIG",
    "SmolLM2Config",
    "SmolLM2Layer",
    "SmolLM2Params",
    "from_gguf",
    "tokenizer_from_gguf",
]


class SmolLM2Config(NamedTuple):
    """The sizes and constants of the model.

    Args:
        num_layers: layers.
        num_heads: query heads a layer, ``N``.
        num_kv_heads: key/value heads a layer, ``K``.
        head_dim: width of a head, ``H``.
        d_model: width of the residual stream, ``D``.
        vocab_size: tokens, ``V``.
        max_length: the most tokens of a sequence, the first one included.
        rope_theta: base of the rotary wavelengths.
        epsilon: added to the mean square in the norms.
        pad_id: the token that fills a row up; it is also the one that every sequence begins with.
    """

    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    d_model: int = 576
    vocab_size: int = 49152
    max_length: int = 8192
    rope_theta: float = 100_000.0
    epsilon: float = 1e-5
    pad_id: int = 0


CONFIG = SmolLM2Config()
"""The configuration of the 135M model."""


class SmolLM2Layer(NamedTuple):
    """The weights of one layer.

    Args:
        attention_norm: ``(D,)``.
        attention: the multi-head parameters.
        feed_forward_norm: ``(D,)``.
        w_gate: ``(D, F)``.
        w_up: ``(D, F)``.
        w_down: ``(F, D)``.
    """

    attention_norm: Array
    attention: MultiHeadParams
    feed_forward_norm: Array
    w_gate: Array
    w_up: Array
    w_down: Array


class SmolLM2Params(NamedTuple):
    """The weights of the model; give them to jitted functions as an argument, never by capture.

    Args:
        token_embedding: ``(V, D)``, for input and output alike.
        layers: one :class:`SmolLM2Layer` a layer.
        output_norm: ``(D,)``.
    """

    token_embedding: Array
    layers: tuple[SmolLM2Layer, ...]
    output_norm: Array


def from_gguf(reader: Any, config: SmolLM2Config = CONFIG) -> SmolLM2Params:
    """Sort the tensors of a GGUF file into the pytree, widened to float32.

    The file has the rows of the query and key matrices in the order that lets rotary positions
    turn adjacent pairs of features, as :func:`mha_book.rope.rotate` does.

    Args:
        reader: a ``gguf.GGUFReader``.
        config: the sizes.

    Returns:
        The parameters. Progress shows on a terminal.
    """
    dequantize = import_extra("gguf", "models").quants.dequantize
    stored = {tensor.name: tensor for tensor in reader.tensors}
    d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim

    def read(name: str) -> np.ndarray:
        """Return a weight in the order of the file: (out, in), (V, D) or (D,)."""
        return dequantize(stored[name].data, stored[name].tensor_type)

    def layer(number: int) -> SmolLM2Layer:
        if sys.stderr.isatty():
            end = "\n" if number + 1 == config.num_layers else ""
            print(f"\rSmolLM2: layer {number + 1} of {config.num_layers}", end=end, file=sys.stderr)

        def weight(name: str) -> Array:
            return jnp.asarray(read(f"blk.{number}.{name}.weight").T)  # (in, out); or (D,)

        attention = MultiHeadParams(
            w_q=weight("attn_q").reshape(d, n, h),
            w_k=weight("attn_k").reshape(d, k, h),
            w_v=weight("attn_v").reshape(d, k, h),
            w_o=weight("attn_output").reshape(n, h, d),
        )
        feed_forward = (weight(f"ffn_{name}") for name in ("gate", "up", "down"))
        return SmolLM2Layer(weight("attn_norm"), attention, weight("ffn_norm"), *feed_forward)

    layers = tuple(layer(number) for number in range(config.num_layers))
    embedding, norm = (
        jnp.asarray(read(f"{name}.weight")) for name in ("token_embd", "output_norm")
    )
    return SmolLM2Params(embedding, layers, norm)


def tokenizer_from_gguf(reader: Any, config: SmolLM2Config = CONFIG) -> Any:
    """Build the byte-level BPE tokenizer from the metadata of a GGUF file.

    Args:
        reader: a ``gguf.GGUFReader``.
        config: the sizes; its ``pad_id`` begins every sequence.

    Returns:
        A ``tokenizers.Tokenizer``.
    """
    tokenizers = import_extra("tokenizers", "models")
    fields = {
        name: reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "merges", "token_type")
    }
    vocabulary = {token: i for i, token in enumerate(fields["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["merges"]]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    pre = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    first = fields["tokens"][config.pad_id]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, config.pad_id)]
    )
    control = 3  # GGUF's type of a token that stands for no text
    special = [
        t for t, kind in zip(fields["tokens"], fields["token_type"], strict=True) if kind == control
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer
