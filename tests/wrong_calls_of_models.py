"""Wrong calls of what stands around attention: models, tokens, costs, files, figures, the notation.

The other half of the catalogue in :mod:`tests.wrong_calls`. The notation's errors have a form of
their own, with carets below the place; its tests are in ``tests/notation``.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from mha_book import costs, init_multi_head, plotting, storage
from mha_book.models import generation, interface, minilm, smollm2, text, tiny, tokens
from mha_book.multihead.latent import absorbed_attention, compress, init_latent
from mha_book.notation.page import page_equations
from mha_book.notation.system import layer_arrays, multi_head_layer
from mha_book.specialization import measures, synthetic, words
from tests.models.small import small_minilm, small_smollm2
from tests.wrong_calls import RNG_KEY, WrongCall, bad

B, T, V = 2, 5, 101

SMOL = small_smollm2(num_layers=1)
LM = small_minilm(num_layers=1)
TINY_CONFIG = tiny.TinyConfig(vocab_size=11, max_length=8, d_model=8, num_layers=1, num_heads=2)
TINY = tiny.init_tiny(RNG_KEY, TINY_CONFIG)
IDS, LENGTHS = jnp.ones((B, T), int), jnp.array([3, 5])


def of_language_models() -> list[WrongCall]:
    """What both trained models refuse: of each the calls that read tokens."""
    caches = smollm2.init_caches(B, 9, config=SMOL.config)
    full, _ = full_caches()

    def encode(name: str, call: Callable[..., Any]) -> list[WrongCall]:
        def on(ids: Any = IDS, lengths: Any = LENGTHS, params: Any = LM.params, **more: Any) -> Any:
            return lambda: call(params, ids, lengths, **more)

        return [
            bad(f"{name}: a model", on(params=LM), "params", "MiniLMParams: write model.params",
                "MiniLM"),
            bad(f"{name}: of another model", on(params=SMOL.params), "params", "MiniLMParams",
                "SmolLM2Params"),
            bad(f"{name}: text", on("hello"), "token_ids", "an array of integers", "str"),
            bad(f"{name}: floats", on(IDS * 1.0), "token_ids", "integers", "float32"),
            bad(f"{name}: too long", on(jnp.ones((B, 600), int)), "token_ids", "at most 512",
                "(2, 600)"),
            bad(f"{name}: a mask for lengths", on(lengths=IDS), "lengths", "(2,)", "(2, 5)"),
            bad(f"{name}: no lengths", on(lengths=None), "lengths", "integers", "NoneType"),
            bad(f"{name}: negative lengths", on(lengths=-LENGTHS), "lengths", "0 to 5",
                "-3"),
            bad(f"{name}: gates", on(gates=jnp.ones((2, 12))), "gates", "(L, N) = (1, 12)",
                "(2, 12)"),
            bad(f"{name}: implementation", on(implementation="fast"), "implementation", "one of",
                "fast"),
        ]  # fmt: skip

    def predict(name: str, call: Callable[..., Any]) -> list[WrongCall]:
        def on(
            ids: Any = IDS, lengths: Any = LENGTHS, params: Any = SMOL.params, **more: Any
        ) -> Any:
            return lambda: call(params, ids, lengths, **{"config": SMOL.config, **more})

        return [
            bad(f"{name}: a model", on(params=SMOL), "params", "SmolLM2Params: write model.params",
                "SmolLM2"),
            bad(f"{name}: floats", on(IDS * 1.0), "token_ids", "integers", "float32"),
            bad(f"{name}: one text", on(IDS[0]), "token_ids", "(B, T)", "(5,)"),
            bad(f"{name}: lengths", on(lengths=LENGTHS[:1]), "lengths", "(2,)", "(1,)"),
            bad(f"{name}: layers", on(config=smollm2.CONFIG), "config.num_layers", "1", "30"),
            bad(f"{name}: no config", on(config=None), "config", "SmolLM2Config", "NoneType"),
            bad(f"{name}: gates", on(gates=jnp.ones(6)), "gates", "(L, N) = (1, 6)", "(6,)"),
            bad(f"{name}: window", on(window=0), "window", "positive", "0"),
            bad(f"{name}: angles", on(angles=jnp.ones((T, 3))), "angles", "axis -1", "3"),
        ]  # fmt: skip

    def read(name: str, call: Callable[..., Any], *first: Any) -> list[WrongCall]:
        def on(ids: Any, caches: Any = caches, params: Any = SMOL.params, **more: Any) -> Any:
            return lambda: call(params, ids, *first, caches, **{"config": SMOL.config, **more})

        ids = IDS if first else IDS[:, 0]
        return [
            bad(f"{name}: a model", on(ids, params=SMOL), "params", "write model.params",
                "SmolLM2"),
            bad(f"{name}: floats", on(ids * 1.0), "token_ids", "integers", "float32"),
            bad(f"{name}: rank", on(ids[0]), "token_ids", "rank", "shape"),
            bad(f"{name}: no cache", on(ids, caches=()), "caches", "1 layers", "0"),
            bad(f"{name}: one cache", on(ids, caches=caches[0]), "caches", "a tuple of caches",
                "KVCache"),
            bad(f"{name}: another batch",
                on(ids, caches=smollm2.init_caches(3, 9, config=SMOL.config)),
                "caches", "B = 2", "3"),
            bad(f"{name}: layers", on(ids, config=smollm2.CONFIG), "config.num_layers", "1", "30"),
        ]  # fmt: skip

    def init(*sizes: Any, **more: Any) -> Callable[[], Any]:
        return lambda: smollm2.init_caches(*sizes, **{"config": SMOL.config, **more})

    reader = SimpleNamespace(tensors=[], fields={})
    return [
        *encode("encode", minilm.encode),
        *predict("predict", smollm2.forward),
        *read("prefill", smollm2.prefill, LENGTHS),
        *read("decode_step", smollm2.decode_step),
        bad("prefill: twice", lambda: smollm2.prefill(SMOL.params, IDS, LENGTHS, full,
            config=SMOL.config), "caches", "without tokens", "[3, 5]"),
        bad("token_losses: one token", lambda: smollm2.token_losses(SMOL.params, IDS[:, :1],
            config=SMOL.config), "token_ids", "two tokens", "(2, 1)"),
        bad("loss: nothing predicted", lambda: smollm2.loss(SMOL.params, IDS, LENGTHS * 0 + 1,
            config=SMOL.config), "lengths", "two tokens", "[1, 1]"),
        bad("init_caches: capacity", init(B, 0), "capacity", "positive", "0"),
        bad("init_caches: window", init(B, 3, window=5), "capacity", "the window, 5 slots", "3"),
        bad("init_caches: params", init(B, 9, params={}), "params", "SmolLM2Params", "dict"),
        bad("from_gguf: path", lambda: smollm2.from_gguf("model.gguf"), "reader", "GGUFReader",
            "str"),
        bad("from_gguf: empty", lambda: smollm2.from_gguf(reader, SMOL.config),
            "reader: tensor blk.0.attn_q.weight", "shape", "no tensor"),
        bad("tokenizer: empty", lambda: smollm2.tokenizer_from_gguf(reader), "reader", "the field",
            "none"),
        bad("checkpoint: empty", lambda: minilm.from_checkpoint({}),
            "tensors['embeddings.word_embeddings.weight']", "shape", "no tensor"),
        bad("checkpoint: shape", lambda: minilm.from_checkpoint(
            {"embeddings.word_embeddings.weight": np.ones((3, 2), np.float32)}),
            "tensors['embeddings.word_embeddings.weight']", "(30522, 384)", "(3, 2)"),
        bad("checkpoint: integers", lambda: minilm.from_checkpoint(
            {"embeddings.word_embeddings.weight": np.ones((30522, 384), int)}),
            "tensors['embeddings.word_embeddings.weight']", "floating", "int64"),
        bad("init_minilm: config", lambda: minilm.init_minilm(RNG_KEY, {}), "config",
            "MiniLMConfig", "dict"),
        bad("mean_pool: rank", lambda: minilm.mean_pool(jnp.ones((T, 3)), LENGTHS), "hidden",
            "(B, T, D)", "(5, 3)"),
        bad("mean_pool: lengths", lambda: minilm.mean_pool(jnp.ones((B, T, 3)), LENGTHS[:1]),
            "lengths", "(2,)", "(1,)"),
        bad("interface: lengths", lambda: interface.check_lengths([1, 2], IDS, "token_ids"),
            "lengths", "integers", "list"),
        bad("losses: ranks", lambda: interface.next_token_losses(jnp.ones((B, 4)), IDS), "logits",
            "(B, T - 1, V)", "(2, 4)"),
        bad("losses: one too many", lambda: interface.next_token_losses(jnp.ones((B, T, V)), IDS),
            "logits", "(2, 4) before V", "(2, 5"),
        bad("tiny loss: one token", lambda: tiny.loss(TINY, IDS[:, :1], config=TINY_CONFIG),
            "token_ids", "two tokens", "(2, 1)"),
        bad("tiny forward: layers", lambda: tiny.forward(TINY._replace(layers=TINY.layers * 2),
            IDS, config=TINY_CONFIG), "config.num_layers", "2", "1"),
        bad("tiny init: config", lambda: tiny.init_tiny(RNG_KEY, {}), "config", "TinyConfig",
            "dict"),
    ]  # fmt: skip


def full_caches() -> tuple[Any, Any]:
    """Caches that hold a prompt, and the logits behind it."""
    caches = smollm2.init_caches(B, 9, config=SMOL.config)
    logits, caches = smollm2.prefill(SMOL.params, IDS, LENGTHS, caches, config=SMOL.config)
    return caches, logits


def of_generation_and_tokens() -> list[WrongCall]:
    def write(*given: Any, model: Any = SMOL, **more: Any) -> Callable[[], Any]:
        given = (*given, *(IDS, LENGTHS, 2)[len(given):])  # fmt: skip
        return lambda: generation.generate(model, *given, **more)

    logits = jnp.ones((B, V))
    letters = "abc"
    ids = jnp.arange(9)
    return [
        bad("generate: params", write(model=SMOL.params), "model", "a loaded model", "Params"),
        bad("generate: text", write("once upon"), "token_ids", "integers", "str"),
        bad("generate: number", write(IDS, LENGTHS, 0), "num_tokens", "positive", "0"),
        bad("generate: float", write(IDS, LENGTHS, 2.0), "num_tokens", "integer", "2.0"),
        bad("generate: too many", write(IDS, LENGTHS, 9000), "num_tokens", "8192", "9005"),
        bad("generate: empty prompt", write(IDS, LENGTHS * 0), "lengths", "1 to 5", "[0, 0]"),
        bad("generate: long prompt", write(IDS, LENGTHS + 1), "lengths", "to 5", "[4, 6]"),
        bad("generate: unknown token", write(IDS + 200), "token_ids", "0 to 100", "201"),
        bad("generate: cold", write(temperature=-1.0, rng_key=0), "temperature", "positive",
            "-1.0"),
        bad("generate: top_k", write(top_k=102, rng_key=0), "top_k", "1 to 101", "102"),
        bad("generate: seed", write(rng_key=4.2), "rng_key", "PRNG key", "4.2"),
        bad("generate: window", write(window=0), "window", "positive", "0"),
        bad("generate: stop", write(stop_ids="end"), "stop_ids", "token ids", "'end'"),
        bad("sample: rank", lambda: generation.sample_token(logits[0]), "logits", "(B, V)",
            "(101,)"),
        bad("sample: integers", lambda: generation.sample_token(IDS), "logits", "floating",
            "int32"),
        bad("sample: NaN", lambda: generation.sample_token(logits * jnp.nan), "logits", "finite",
            "[0, 1]"),
        bad("sample: seed", lambda: generation.sample_token(logits, 4.2), "rng_key", "PRNG key",
            "4.2"),
        bad("tokenize: one text", lambda: tokens.tokenize(SMOL, "to be"), "sentences", "a list",
            "'to be'"),
        bad("tokenize: nothing", lambda: tokens.tokenize(SMOL, []), "sentences", "at least one",
            "[]"),
        bad("tokenize: params", lambda: tokens.tokenize(SMOL.params, ["to"]), "model",
            "a loaded model", "SmolLM2Params"),
        bad("tokenize: too long", lambda: tokens.tokenize(SMOL, ["a" * 9000]), "sentences[0]",
            "at most 8192", "9001"),
        bad("strings: rank", lambda: tokens.token_strings(SMOL, IDS), "token_ids", "(T,)",
            "(2, 5)"),
        bad("strings: list", lambda: tokens.token_strings(SMOL, [1, 2]), "token_ids", "integers",
            "list"),
        bad("strings: unknown", lambda: tokens.token_strings(SMOL, jnp.array([500])), "token_ids",
            "0 to 100", "500"),
        bad("vocabulary: list", lambda: tokens.character_vocabulary(["ab"]), "text", "a string",
            "list"),
        bad("encode text: order", lambda: tokens.encode_characters("ab", "ba"), "characters",
            "in order", "'ba'"),
        bad("encode text: no characters", lambda: tokens.encode_characters("ab", ""), "characters",
            "one or more", "''"),
        bad("encode text: list", lambda: tokens.encode_characters("ab", ["a", "b"]), "characters",
            "a string", "list"),
        bad("decode text: unknown", lambda: tokens.decode_characters(ids, letters), "token_ids",
            "0 to 3", "4"),
        bad("decode text: floats", lambda: tokens.decode_characters(ids / 2, letters), "token_ids",
            "integers", "float32"),
        bad("decode text: rank", lambda: tokens.decode_characters(IDS, letters), "token_ids",
            "(P,)", "(2, 5)"),
        bad("windows: long", lambda: tokens.sample_windows(ids, RNG_KEY, 2, 10), "token_ids",
            "at least 10", "9"),
        bad("windows: negative", lambda: tokens.sample_windows(ids, RNG_KEY, 2, -3), "length",
            "positive", "-3"),
        bad("even windows: rank", lambda: tokens.evenly_spaced_windows(IDS, 2, 3), "token_ids",
            "(P,)", "(2, 5)"),
        bad("speeches: split", lambda: text.load_speeches("dev"), "split", "one of train", "'dev'"),
        bad("split_of: text", lambda: text.split_of("1861"), "year", "integer", "'1861'"),
        bad("word_ids: text", lambda: words.word_ids(LM, "to be"), "words", "a list", "'to be'"),
    ]  # fmt: skip


def of_costs() -> list[WrongCall]:
    size = costs.attention_size(4, 2)
    function, shape = (lambda x: x @ x.T), jax.ShapeDtypeStruct((3, 5), "float32")
    return [
        bad("size: indivisible", lambda: costs.attention_size(10, 3), "num_heads", "d_model = 10",
            "3"),
        bad("size: float", lambda: costs.attention_size(10.0, 2), "d_model", "integer", "10.0"),
        bad("size: kv", lambda: costs.attention_size(12, 6, 4), "num_kv_heads", "num_heads = 6",
            "4"),
        bad("size: boolean", lambda: costs.attention_size(12, True), "num_heads", "integer",
            "True"),
        bad("latent: width", lambda: costs.latent_size(8, 2, 0, 4, 2, 4, is_absorbed=True),
            "latent_dim", "positive", "0"),
        bad("latent: text", lambda: costs.latent_size(8, 2, "4", 4, 2, 4, is_absorbed=True),
            "latent_dim", "positive", "'4'"),
        bad("cache: positions", lambda: costs.kv_cache_bytes(size, position_count=-1,
            bytes_per_element=2), "position_count", "0 or", "-1"),
        bad("cache: bytes", lambda: costs.kv_cache_bytes(size, position_count=1,
            bytes_per_element=0.5), "bytes_per_element", "integer", "0.5"),
        bad("pairs: size", lambda: costs.forward_matmul_flops((4, 2), pair_count=2), "size",
            "LayerSize", "tuple"),
        bad("flops: negative pairs", lambda: costs.forward_matmul_flops(size, pair_count=-2),
            "pair_count", "0 or", "-2"),
        bad("flops: negative size", lambda: costs.forward_matmul_flops(
            costs.LayerSize(-2, 8, 0, 4, 4), pair_count=2), "size.num_heads", "0 or", "-2"),
        bad("flops: tokens", lambda: costs.forward_matmul_flops(size, token_count="3"),
            "token_count", "integer", "'3'"),
        bad("forward flops: tokens", lambda: costs.forward_matmul_flops(size, token_count=-3,
            pair_count=1), "token_count", "0 or", "-3"),
        bad("visible: more queries", lambda: costs.visible_pair_count(5, 4), "key_length",
            "at least 5", "4"),
        bad("visible: window", lambda: costs.visible_pair_count(4, 4, window=-1), "window", "0 or",
            "-1"),
        bad("visible: float", lambda: costs.visible_pair_count(4, 4.0), "key_length", "integer",
            "4.0"),
        bad("traced: no function", lambda: costs.traced_matmul_flops(shape, shape), "function",
            "a function", "ShapeDtypeStruct"),
        bad("compiled: no function", lambda: costs.compiled_matmul_flops(None, shape), "function",
            "a function", "NoneType"),
        bad("compiled: swapped", lambda: costs.compiled_matmul_flops(shape, function), "function",
            "a function", "ShapeDtypeStruct"),
    ]  # fmt: skip


def of_files() -> list[WrongCall]:
    folder = Path(tempfile.mkdtemp())
    broken = {
        "empty": b"", "short": b"\x08\0\0\0", "no.json": b"{", "list.json": b"[1]",
        "bare.json": b'{"a": 1}', "text.json": b'{"provenance": "today"}',
        "ragged.csv": b"a,b\n1\n", "bytes.csv": b"\xff\xfe,\n", "twice.csv": b"a,a\n1,2\n",
        "huge": (2**62).to_bytes(8, "little") + b"{}",
    }  # fmt: skip
    for name, content in broken.items():
        (folder / name).write_bytes(content)

    def file(name: str) -> str:
        return str(folder / name)

    good = folder / "good"
    storage.save_arrays(good, {"w": np.ones(3)}, {"seed": 1})
    content = good.read_bytes()
    (folder / "cut").write_bytes(content[:-1])
    (folder / "flipped").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    whole, table, digest = "a whole safetensors file", storage.read_table, "its own digest"
    return [
        *(bad(f"load_arrays: {name}", lambda name=name: storage.load_arrays(file(name)), file(name),
              whole, "") for name in ("empty", "short", "huge", "cut")),
        bad("load_arrays: flipped", lambda: storage.load_arrays(file("flipped")), file("flipped"),
            digest, ""),
        bad("load_arrays: other file", lambda: storage.load_arrays(file("no.json")),
            file("no.json"), whole, ""),
        bad("read_result: no JSON", lambda: storage.read_result(file("no.json")), file("no.json"),
            "a JSON file", ""),
        bad("read_result: list", lambda: storage.read_result(file("list.json")), file("list.json"),
            "a block provenance", "list"),
        bad("read_table: empty", lambda: table(file("empty")), file("empty"), "a header", ""),
        bad("read_table: ragged", lambda: table(file("ragged.csv")), file("ragged.csv"),
            "one length", "[1, 2]"),
        bad("read_table: twice", lambda: table(file("twice.csv")), file("twice.csv"), "names", "a"),
        bad("save_arrays: bfloat16", lambda: storage.save_arrays(file("x"),
            {"w": jnp.ones(2, jnp.bfloat16)}), "w", "float16, 32", "bfloat16"),
        bad("save_arrays: reserved", lambda: storage.save_arrays(file("x"),
            {"__metadata__": np.ones(2)}), "arrays", "none of them", "__metadata__"),
        bad("save_arrays: digest", lambda: storage.save_arrays(file("x"), {}, {"sha256": 1}),
            "metadata", "none of them", "sha256"),
        bad("save_arrays: metadata", lambda: storage.save_arrays(file("x"), {}, {"set": {1}}),
            "metadata['set']", "JSON", "set"),
        bad("write_table: list", lambda: storage.write_table(file("x"), [[1]]), "columns",
            "Mapping", "list"),
        bad("write_table: digits", lambda: storage.write_table(file("x"), {"a": [0.5]}, digits=0),
            "digits", "positive", "0"),
        bad("write_table: matrix", lambda: storage.write_table(file("x"), {"a": np.eye(2)}),
            "columns", "one axis", "(2, 2)"),
        bad("write_table: return", lambda: storage.write_table(file("x"), {"a": ["1\r"]}),
            "columns", "carriage return", "one"),
        bad("write_atomic: text", lambda: storage.write_atomic(file("x"), "text"), "content",
            "bytes", "str"),
        bad("seal: no provenance", lambda: storage.seal({"loss": 1}), "document",
            "a block provenance", "none"),
        bad("seal: NaN", lambda: storage.seal({"provenance": {}, "loss": float("nan")}),
            "document", "JSON", "nan"),
        bad("digest: set", lambda: storage.payload_digest({"loss": {1}}), "document", "JSON",
            "set"),
        bad("digest: list", lambda: storage.payload_digest([1]), "document", "Mapping", "list"),
        bad("load_tree: list", lambda: storage.load_tree([np.ones(1)], {"w": jnp.ones(1)}),
            "arrays", "Mapping", "list"),
        bad("load_tree: dtype", lambda: storage.load_tree({"['w']": np.ones(1, int)},
            {"w": jnp.ones(1)}), "['w']", "float32", "int64"),
        bad("tree_arrays: text", lambda: storage.tree_arrays({"w": "abc"}), "['w']", "an array",
            "str"),
        bad("page: name", lambda: storage.find_package("mha_book.models"), "package", "top-level",
            "mha_book.models"),
        bad("page: path", lambda: storage.find_package("../secret"), "package", "top-level",
            "../secret"),
        bad("installed: up", lambda: storage.installed_file("mha_book", "../../secret", "0"),
            "name", "inside the package", "../../secret"),
        bad("installed: absolute", lambda: storage.installed_file("mha_book", "/etc/passwd", "0"),
            "name", "inside the package", "/etc/passwd"),
        bad("installed: digest", lambda: storage.installed_file("mha_book", "heads.py", "0"),
            f"sha256 of {storage.find_package('mha_book') / 'heads.py'}", "0", ""),
    ]  # fmt: skip


def of_figures() -> list[WrongCall]:
    weights, labels = np.full((2, 2), 0.5), ["to", "be"]
    heads, names = np.full((3, 2, 2), 0.5), ["0", "1", "2"]

    def figure(call: Callable[..., Any], *given: Any, **more: Any) -> Callable[[], Any]:
        def drawn() -> Any:
            try:
                return call(*given, **more)
            finally:
                plt.close("all")

        return drawn

    one, grid, atlas = plotting.attention_map, plotting.head_grid, plotting.head_atlas
    return [
        bad("map: heads", figure(one, heads, labels), "weights", "(T, S)", "(3, 2, 2)"),
        bad("map: scores", figure(one, weights * 4, labels), "weights", "from 0 to 1", "2.0"),
        bad("map: NaN", figure(one, weights * np.nan, labels), "weights", "from 0 to 1", "nan"),
        bad("map: integers", figure(one, np.eye(2, dtype=int), labels), "weights", "floating",
            "int64"),
        bad("map: empty", figure(one, np.ones((0, 2)), []), "weights", "none of them empty",
            "(0, 2)"),
        bad("map: labels", figure(one, weights, ["to"]), "query_tokens", "2 labels", "1"),
        bad("map: one label", figure(one, weights, "to"), "query_tokens", "a list of strings",
            "'to'"),
        bad("map: numbers", figure(one, weights, [1, 2]), "query_tokens", "a list of strings",
            "[1, 2]"),
        bad("map: keys", figure(one, weights, labels, ["be"]), "key_tokens", "2 labels", "1"),
        bad("map: vmax", figure(one, weights, labels, vmax=0), "vmax", "in (0, 1]", "0"),
        bad("grid: one head", figure(grid, weights, labels), "weights", "(N, T, S)", "(2, 2)"),
        bad("grid: columns", figure(grid, heads, labels, columns=0), "columns", "positive", "0"),
        bad("grid: titles", figure(grid, heads, labels, titles=["a"]), "titles", "3 titles", "1"),
        bad("atlas: titles", figure(atlas, heads, names[:2], {"all": [0]}), "titles", "3 titles",
            "2"),
        bad("atlas: head", figure(atlas, heads, names, {"all": [3]}), "groups", "0 to 2", "[3]"),
        bad("atlas: nothing", figure(atlas, heads, names, {}), "groups", "heads from", "[]"),
        bad("atlas: list", figure(atlas, heads, names, [[0, 1]]), "groups", "Mapping", "list"),
        bad("atlas: columns", figure(atlas, heads, names, {"all": [0]}, columns=0), "columns",
            "positive", "0"),
        bad("figure: axes", lambda: plotting.figure_data(None), "figure", "Figure", "NoneType"),
    ]  # fmt: skip


def of_the_rest() -> list[WrongCall]:
    latent = init_latent(RNG_KEY, 10, 2, latent_dim=6, head_dim=4, rotary_dim=2, value_dim=3)
    x = jnp.ones((T, 10))
    found = compress(latent, x, jnp.ones((T, 1)))
    task = synthetic.ProbeTask()
    separate = init_multi_head(RNG_KEY, 10, 2)
    return [
        bad("absorbed: width", lambda: absorbed_attention(latent, x[:, :7], found,
            jnp.ones((T, 1))), "x", "10", "7"),
        bad("absorbed: params", lambda: absorbed_attention(separate, x, found, jnp.ones((T, 1))),
            "params", "LatentParams", "MultiHeadParams"),
        bad("absorbed: latent", lambda: absorbed_attention(latent, x, x, jnp.ones((T, 1))),
            "latent", "Latent", "Array"),
        bad("absorbed: angles", lambda: absorbed_attention(latent, x, found, jnp.ones((T, 3))),
            "angles", "axis -1", "3"),
        bad("measures: numbers", lambda: measures.add_texts({"a": 1.0}), "sums['a']", "MeasureSums",
            "float"),
        bad("probe: task", lambda: synthetic.probe_patterns({}, None, None), "task", "ProbeTask",
            "dict"),
        bad("probe: drawn", lambda: synthetic.probe_patterns(task, None, None), "drawn", "Probes",
            "NoneType"),
        bad("layer arrays: dict", lambda: layer_arrays(separate._asdict(), x), "params",
            "MultiHeadParams", "dict"),
        bad("layer arrays: x", lambda: layer_arrays(separate, [1.0]), "x", "an array", "list"),
        bad("system: flag", lambda: multi_head_layer(use_bias="no"), "use_bias", "True or False",
            "'no'"),
        bad("pages: equations", lambda: page_equations(3), "path", "a path", "3"),
    ]  # fmt: skip


MORE_CASES: list[WrongCall] = [
    *of_language_models(),
    *of_generation_and_tokens(),
    *of_costs(),
    *of_files(),
    *of_figures(),
    *of_the_rest(),
]
