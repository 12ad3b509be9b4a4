"""Wrong calls, each with words of the error that it has to raise.

Two sources: :data:`ROWS` has a row for each kind of mistake and public function, ``(words, call)``
with words ``"argument: what is expected"``; :func:`changed_calls` makes the common mistakes (lists,
other dtypes, text, masked arrays, other axes) from the right calls of :data:`RIGHT`. An error is
good if it is ours, ``argument: expected …; got …``.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

import mha_book as book
from mha_book import attend, causal, costs, padding, plotting, storage
from mha_book.attention import flash
from mha_book.attention.reference import scaled_dot_product_attention
from mha_book.heads import heads_first
from mha_book.layers import layer_norm, rms_norm, swiglu
from mha_book.models import generation, minilm, smollm2, tiny
from mha_book.multihead import cache, grouped, latent, sinks
from mha_book.multihead import gradient as layer_gradient
from mha_book.multihead.dropout import Dropout, draw_factors, dropout
from mha_book.multihead.layer import multi_head_attention, project_qkv
from mha_book.notation.system import layer_arrays
from mha_book.pruning import importance, order, removal
from mha_book.pruning.hard_concrete import HardConcrete
from mha_book.rope import rotary_angles, rotate
from mha_book.sharding import layer as sharded_layer
from mha_book.sharding import mesh, placement, ring
from mha_book.specialization import (
    composition,
    intervals,
    measures,
    patterns,
    similarity,
    synthetic,
    words,
)
from tests.models.small import small_minilm, small_smollm2

Call = Callable[[], Any]

B, N, K, T, S, H, C, D = 2, 6, 2, 5, 7, 3, 11, 10
Q, KEY, VALUE = jnp.ones((B, N, T, H)), jnp.ones((B, K, S, H)), jnp.ones((B, K, S, C))
QKV = {"query": Q, "key": KEY, "value": VALUE}
X, ONE, RNG_KEY = jnp.ones((B, T, D)), jnp.ones(D), jax.random.key(0)
PARAMS = book.init_multi_head(RNG_KEY, D, N, num_kv_heads=K, head_dim=H, use_bias=True)
PLAIN = book.init_multi_head(RNG_KEY, D, N, head_dim=H)
FUSED = book.fuse(PARAMS)
LATENT = latent.init_latent(
    RNG_KEY, D, N, latent_dim=4, head_dim=2, rotary_dim=2, value_dim=3
)._replace(norm_c=None)
STILL, ANGLES = jnp.zeros((T, 1)), jnp.ones((T, D // 2))
CACHE, NEW = cache.init_cache(B, K, S, H), jnp.ones((B, K, 2, H))
SMOL, LM = small_smollm2(num_layers=1), small_minilm(num_layers=1)
CONFIG = tiny.TinyConfig(vocab_size=11, max_length=8, d_model=8, num_layers=1, num_heads=2)
TINY = tiny.init_tiny(RNG_KEY, CONFIG)
IDS, LENGTHS, LETTERS = jnp.ones((B, T), int), jnp.array([3, 5]), jnp.arange(9)
SEEN, WEIGHTS = jnp.ones((1, 4, 4), bool), jnp.ones((1, 2, 4, 4)) / 4
TEXT = jnp.arange(4)[None]
MODEL = tiny.TinyParams(None, None, (tiny.TinyLayer(None, PARAMS),) * 2, None, None)
GATES, KEEP = jnp.ones((2, N)), np.ones(N, bool)
MAP, LABELS = np.full((2, 2), 0.5), ["to", "be"]
FULL = "(…, N, T, S) = (2, 6, 5, 7)"
RING = {"mesh": AbstractMesh((2, 4), ("heads", "ring")), "axes": mesh.MeshAxes(sequence="ring")}
IN_TURN = jnp.ones((2, 8, 3))


def loss(params: Any, gates: Any, example: Any) -> Any:
    return params * jnp.sum(gates) * example


SCORED = {"loss": loss, "gates": GATES}

# Right calls; each argument of each is changed by changed_calls.
RIGHT: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (attend, {**QKV, "bias": jnp.ones((1, 1, T, S)), "scale": 0.5, "is_causal": False}),
    (scaled_dot_product_attention, {**QKV, "is_causal": False}),
    (book.attention_weights, {"query": Q, "key": KEY, "is_causal": False}),
    (multi_head_attention, {"params": PARAMS, "query": X, "gates": jnp.ones(N), "scale": 0.5}),
    (book.sliding_window, {"window": 2}),
    (book.padding, {"key_lengths": LENGTHS}),
    (book.array_mask, {"array": SEEN}),
    (book.identity_params, {"d_model": 6, "num_heads": 2}),
    (book.init_multi_head, {"rng_key": RNG_KEY, "d_model": D, "num_heads": 2, "use_bias": True}),
    (book.fuse, {"params": PARAMS}),
    (project_qkv, {"params": PARAMS, "query": X}),
    (layer_norm, {"x": X, "weight": ONE, "bias": ONE}),
    (rms_norm, {"x": X, "weight": ONE}),
    (swiglu, {"x": X, "w_gate": X[0].T, "w_up": X[0].T, "w_down": X[0]}),
    (rotary_angles, {"positions": LETTERS, "head_dim": 4}),
    (rotate, {"x": X, "angles": ANGLES}),
    (cache.init_cache, {"batch": B, "num_kv_heads": K, "capacity": S, "head_dim": H}),
    (cache.append, {"cache": CACHE, "key": NEW, "value": NEW, "counts": jnp.ones(B, int)}),
    (cache.attend_cached, {"query": Q[:, :, :1], "cache": cache.append(CACHE, NEW, NEW)}),
    (grouped.repeat_kv_heads, {"params": PARAMS}),
    (grouped.mean_pool_groups, {"params": PARAMS, "num_kv_heads": 1}),
    (latent.compress, {"params": LATENT, "x": X[0], "angles": STILL}),
    (dropout, {"x": X, "rate": 0.5, "rng_key": RNG_KEY}),
    (patterns.on_target, {"visible": SEEN, "target": SEEN}),
    (patterns.at_offset, {"visible": SEEN, "offset": -1}),
    (patterns.prefix_matching, {"visible": SEEN, "token_ids": TEXT}),
    (patterns.normalized_entropy, {"weights": WEIGHTS, "visible": SEEN}),
    (patterns.mean_score, {"weights": WEIGHTS, "pattern": patterns.distance(SEEN)}),
    (measures.text_patterns, {"visible": SEEN, "token_ids": TEXT}),
    (similarity.jensen_shannon_sums, {"weights": WEIGHTS, "visible": SEEN}),
    (similarity.cluster, {"distances": np.zeros((3, 3)), "num_clusters": 2}),
    (words.word_weights, {"weights": np.eye(2), "owner": np.zeros(2, int)}),
    (synthetic.copied_positions, {"token_ids": TEXT, "period": 2}),
    (
        synthetic.repeated_tokens,
        {"rng_key": RNG_KEY, "batch": 1, "period": 2, "vocabulary": LETTERS, "first_id": 0},
    ),
    *(
        (partial(score, params=1.0, example=1.0), SCORED)
        for score in (importance.ablation, importance.gate_gradient, importance.taylor)
    ),
    (importance.normalize_layers, {"importance": GATES}),
    (removal.prune_heads, {"params": PARAMS, "keep": KEEP, "uneven": "raise"}),
    (removal.fold_gates, {"params": MODEL, "gates": GATES}),
    (
        removal.mean_ablation,
        {"params": MODEL, "keep": GATES, "head_means": jnp.ones((2, N, H))},
    ),
    (tiny.forward, {"params": TINY, "token_ids": IDS, "config": CONFIG}),
    (minilm.mean_pool, {"hidden": X, "lengths": LENGTHS}),
    (generation.sample_token, {"logits": X[0], "rng_key": RNG_KEY, "temperature": 1.0, "top_k": 2}),
    (costs.attention_size, {"d_model": 12, "num_heads": 6}),
]  # fmt: skip


def changed_calls() -> Iterator[tuple[str, str, bool, Call]]:
    """Each right call with one argument of another kind: its name, the argument, must it raise."""
    for function, given in RIGHT:
        title = getattr(function, "func", function).__name__
        parameters = inspect.signature(function).parameters
        for name, value in given.items():
            for what, wrong, must in mistakes(value):
                if wrong is None and parameters[name].default is None:
                    continue
                call = partial(function, **{**given, name: wrong})
                if not must:  # it may be right: shapes alone, nothing is compiled
                    call = partial(jax.eval_shape, call)
                yield f"{title}, {name}: {what}", name, must, call


def mistakes(value: Any) -> Iterator[tuple[str, Any, bool]]:
    """What may be given by mistake in place of a value, and whether it can only be one."""
    if isinstance(value, bool):
        yield from (("text", "no", True), ("one", 1, True), ("none", None, True))
    elif isinstance(value, int):
        yield from (("a fraction", 2.5, True), ("text", "2", True), ("true", True, True))
        yield "negative", -3, False
    elif isinstance(value, float):
        yield from (("text", "0.5", True), ("an array", jnp.ones(13), True))
    elif isinstance(value, str):
        yield from (("another", "no such", True), ("a number", 3, True))
    elif not hasattr(value, "dtype"):  # functions and parameters
        yield from (("a number", 1.0, True), ("a dict", {}, True))
    elif jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        yield from (("a fraction", 4.2, True), ("text", "seed", True))
    else:
        is_float = jnp.issubdtype(value.dtype, jnp.floating)
        numbers = isinstance(value, np.ndarray) and is_float  # NumPy's: a list of them will do
        yield from (("a list", [[1.0], [1.0, 2.0]], True), ("none", None, not numbers))
        if not numbers:
            yield "another dtype", value > 0 if is_float else value * 1.0, True
        hidden = np.ma.masked_array(np.asarray(value), np.ones(value.shape, bool))
        yield "masked", hidden, True
        if value.ndim:
            yield "an axis less", value[0], False
        for axis in range(value.ndim):
            yield f"axis {axis} longer", jnp.concatenate([value] * 2, axis), False


def drawn(call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    import matplotlib.pyplot as plt

    try:
        return call(*given, **more)
    finally:
        plt.close("all")


def changed(**fields: Any) -> Call:
    return lambda: multi_head_attention(PARAMS._replace(**fields), X)


LAYER = partial(multi_head_attention, PARAMS, X)
SOME, PAIRS = jnp.array([1, 2]), jnp.ones((1, 1, T, S), bool)
WRITE = partial(generation.generate, token_ids=IDS, lengths=LENGTHS, num_tokens=2)

ROWS: list[tuple[str, Call]] = [
    # Heads, masks, attention.
    ("num_heads: divides", lambda: book.split_heads(X, 3)),
    ("x: (…, N, T, H)", lambda: book.combine_heads(jnp.ones((2, 3)))),
    ("layout: one of NTH, TNH", lambda: heads_first(Q, "BTNH")),
    ("query_offset: an integer", lambda: causal(1.5)),
    ("mask: &, | or ~ between masks", lambda: causal() and causal()),
    ("other (right of &): a Mask", lambda: causal() & PAIRS),
    ("key_lengths: 0 or more", lambda: padding(-SOME)),
    ("query_length: integer", lambda: causal().materialize(2.0, 3)),
    ("mask.key_lengths: 0 to 7", lambda: attend(Q, KEY, VALUE, mask=padding(SOME + S))),
    (f"mask: {FULL}", lambda: attend(Q, KEY, VALUE, mask=jnp.ones((B, S), bool))),
    (f"mask: {FULL}", lambda: attend(Q, KEY, VALUE, mask=PAIRS[:, 0])),
    ("mask: a Mask or a boolean array", lambda: attend(Q, KEY, VALUE, mask="causal")),
    ("mask: boolean", lambda: attend(Q, KEY, VALUE, mask=PAIRS * 1.0)),
    (f"bias: {FULL}", lambda: attend(Q, KEY, VALUE, bias=jnp.ones((T, S)))),
    ("scale: a finite number", lambda: attend(Q, KEY, VALUE, scale=float("nan"))),
    ("key: the dtype of query, float32", lambda: attend(Q, KEY.astype(jnp.bfloat16), VALUE)),
    ("key: divides the 5 query heads", lambda: attend(Q[:, :5], KEY, VALUE)),
    ("value: axis -2", lambda: attend(Q, KEY, VALUE[:, :, 1:])),
    ("implementation: one of", lambda: attend(Q, KEY, VALUE, implementation="fast")),
    ("query: (…, T, N, H)", lambda: attend(ANGLES, ANGLES, ANGLES, layout="TNH")),
    ("key: 2 heads", lambda: flash.flash_attention(IN_TURN, IN_TURN[:1], IN_TURN[:1], block=4)),
    ("query: multiple of block", lambda: flash.flash_attention(*[IN_TURN] * 3, block=3)),
    # The layer and its parameters.
    ("w_q: (D, N, H)", changed(w_q=jnp.ones((D, 18)))),
    ("w_k: (any, 2, 3)", changed(w_k=jnp.ones((D, 4, H)))),
    ("w_v: float32", changed(w_v=PARAMS.w_v.astype(jnp.float16))),
    ("gates: a floating-point dtype", lambda: LAYER(gates=jnp.ones(N, int), dtype="float32")),
    ("dropout: Dropout(", lambda: LAYER(dropout=0.1)),
    ("rng_key: PRNG key", lambda: LAYER(dropout=Dropout(weights=0.5))),
    ("angles: self-attention", lambda: multi_head_attention(PARAMS, X, X, angles=ANGLES)),
    ("params: one head width",
     lambda: book.fuse(PLAIN._replace(w_v=jnp.ones((D, N, C)), w_o=jnp.ones((N, C, D))))),
    ("w_qkv: N + 2K", lambda: book.unfuse(FUSED._replace(w_qkv=FUSED.w_qkv[:, :9]))),
    ("num_heads: d_model = 10", lambda: book.init_multi_head(0, D, 3)),
    ("num_kv_heads: num_heads = 2", lambda: book.init_multi_head(0, D, 2, num_kv_heads=3)),
    ("initializer: function", lambda: book.init_multi_head(0, D, 2, initializer="xavier")),
    ("rng_key: a seed of 64 bits", lambda: book.init_multi_head(2**100, D, 2)),
    ("dropout.weights: [0, 1)", lambda: Dropout(weights=1.0)),
    ("dropout: Dropout(", lambda: draw_factors(0.5, RNG_KEY, (2, 5, 7), 3, 4)),
    ("implementation: manual, recompute",
     lambda: layer_gradient.multi_head_attention_vjp(PARAMS, X, implementation="fast")),
    ("capacity: the window, 3 slots", lambda: cache.init_cache(B, K, 2, H, window=3)),
    ("counts: 0 to 2", lambda: cache.append(CACHE, NEW, NEW, jnp.array([3, 1]))),
    ("cache: at most 7", lambda: cache.append(CACHE, *[jnp.ones((B, K, 9, H))] * 2)),
    ("latent: compress", lambda: latent.expanded_attention(LATENT, X, X, STILL)),
    ("sink: (N,) = (6,)", lambda: sinks.sink_logit_attention(PARAMS, jnp.ones(2), X)),
    # Layers around attention.
    ("head_dim: even", lambda: rotary_angles(LETTERS, 5)),
    ("x: even", lambda: rotate(X[..., :9], ANGLES)),
    ("epsilon: non-negative", lambda: layer_norm(X, ONE, ONE, -1.0)),
    # Models, tokens, costs, files, figures.
    ("token_ids: two tokens", lambda: tiny.loss(TINY, IDS[:, :1], config=CONFIG)),
    ("params: write model.params", lambda: minilm.encode(LM, IDS, LENGTHS)),
    ("config.num_layers: 1",
     lambda: smollm2.forward(SMOL.params, IDS, LENGTHS, config=smollm2.CONFIG)),
    ("tensors['embeddings.word_embeddings.weight']: shape", lambda: minilm.from_checkpoint({})),
    ("reader: GGUFReader", lambda: smollm2.from_gguf("model.gguf")),
    ("model: a loaded model", lambda: WRITE(SMOL.params)),
    ("num_tokens: 8192", lambda: WRITE(SMOL, num_tokens=9000)),
    ("token_ids: 0 to 100", lambda: WRITE(SMOL, token_ids=IDS + 200)),
    ("logits: finite", lambda: generation.sample_token(X[0] * jnp.nan)),
    ("num_heads: d_model = 10", lambda: costs.attention_size(10, 3)),
    ("size: LayerSize", lambda: costs.forward_matmul_flops((4, 2), pair_count=2)),
    ("key_length: at least 5", lambda: costs.visible_pair_count(5, 4)),
    ("['w']: float32", lambda: storage.load_tree({"['w']": np.ones(1, int)}, {"w": jnp.ones(1)})),
    ("document: a block provenance", lambda: storage.seal({"loss": 1})),
    ("weights: from 0 to 1", lambda: drawn(plotting.attention_map, MAP * 4, LABELS)),
    ("params: MultiHeadParams", lambda: layer_arrays({}, X)),
    # Sharding.
    ("length: multiple of 4", lambda: placement.make_placement("zigzag", 6, 2)),
    ("axes: MeshAxes", lambda: ring.ring_attention(*[IN_TURN] * 3, **{**RING, "axes": "ring"})),
    ("method: ring",
     lambda: sharded_layer.sharded_multi_head_attention(PARAMS, X, method="star", **RING)),
    # What heads do, and which can go.
    ("mask: Mask", lambda: patterns.visible_pairs(SEEN, 1, 4)),
    ("weights: a list of arrays", lambda: measures.measure_heads(WEIGHTS, SEEN, {})),
    ("sums['a']: MeasureSums", lambda: measures.add_texts({"a": 1.0})),
    ("later: inputs as wide as",
     lambda: composition.composition(PARAMS, PARAMS._replace(w_k=jnp.ones((D + 1, K, H))))),
    ("values: real numbers", lambda: intervals.mean_interval("12")),
    ("words: a list", lambda: words.join_words("one two")),
    ("keep: equally many", lambda: removal.prune_heads(PARAMS, np.arange(N) > 0)),
    ("keep: outside jax.jit", lambda: jax.jit(partial(removal.prune_heads, PARAMS))(KEEP)),
    ("order: below (2, 2)", lambda: order.head_mask([[5, 0]], 1, (2, 2))),
    ("loss: a scalar", lambda: importance.taylor(lambda p, g, x: g, GATES, GATES, 1.0)),
    ("probability: between 0 and 1", lambda: HardConcrete.init((2,), 95.0)),
]  # fmt: skip


def judge(call: Call) -> tuple[str, str]:
    """Return "good", "poor" or "silent", and what was raised or returned."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in use: a warning stops nobody
            result = call()
    except (ValueError, TypeError, NotImplementedError) as error:
        is_ours = ": expected " in str(error) and "; got " in str(error)
        return "good" if is_ours else "poor", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "poor", f"{type(error).__name__}: {error}"
    return "silent", f"returned {result!r}"[:200]
