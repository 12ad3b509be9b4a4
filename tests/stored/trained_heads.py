"""Numbers of trained heads computed again from the packaged weights, as the experiments do.

What is computed does not look at the stored numbers it is compared with; it is kept, so that a
forged file costs no second run. The spread of a forward pass in float32 between machines is far
below :data:`CLOSE`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import (
    cache_bits,
    gates_smollm2,
    heads,
    heads_in_use,
    later_senders,
    papers,
    pruning,
    quantization,
)
from experiments.shared import first_layers
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import tokenize
from mha_book.pruning import importance
from mha_book.pruning.order import head_mask, removal_order
from mha_book.specialization.measures import add_texts
from mha_book.specialization.synthetic import copied_positions, repeated_tokens
from mha_book.storage import read_table
from tests.stored.files import DATA, result

CLOSE: dict[str, Any] = {"rtol": 2e-3, "atol": 5e-4}
SHAPE = (30, 9)
TEXTS = 6  # of 24, in the slice of a curve
LONGER = 2  # of the longer passages
SOME_HEADS = ((1, 3), (0, 8), (18, 4))  # the most needed one, and others
CURVES = (
    ("ablation", 81), ("gate gradient", 81), ("taylor", 81), ("iterative", 81),
    ("sign of the loss without it", 81), ("random 0", 27),
)  # fmt: skip


@functools.cache
def language_model() -> Any:
    return smollm2.load_smollm2()


@functools.cache
def encoder() -> Any:
    return minilm.load_minilm()


@functools.cache
def ranking_windows() -> Any:
    return heads.windows(language_model(), "train", 24, 101)


@functools.cache
def rise_without(layer: int, head: int) -> float:
    """The rise of the loss on the windows of the ablation without one head."""
    gates = np.ones(SHAPE, np.float32)
    base = loss_with(gates.tobytes())
    gates[layer, head] = 0
    return loss_with(gates.tobytes()) - base


@functools.cache
def compiled_loss() -> Any:
    return jax.jit(heads.gated_loss(language_model().config))


@functools.cache
def loss_with(gates: bytes) -> float:
    opened = jnp.asarray(np.frombuffer(gates, np.float32).reshape(SHAPE))
    return float(compiled_loss()(language_model().params, opened, ranking_windows()[:4]))


def close(found: Any, told: Any, **how: Any) -> None:
    np.testing.assert_allclose(found, told, **(CLOSE | how))


# heads.json


def check_ablation(document: dict[str, Any]) -> None:
    """The importance of some heads by ablation."""
    for layer, head in SOME_HEADS:
        told = document["importance"]["ablation"][layer][head]
        close(rise_without(layer, head), told)


def check_all_ablations(document: dict[str, Any]) -> None:
    """That of all 270 heads: as long as the experiment."""
    found = [[rise_without(layer, head) for head in range(9)] for layer in range(30)]
    close(found, document["importance"]["ablation"])


def check_scores_of_weights(document: dict[str, Any]) -> None:
    """The importances that need no text."""
    norm = jax.jit(importance.weight_norm)(language_model().params)
    drawn = jax.random.uniform(jax.random.key(0), SHAPE)
    close(norm, document["importance"]["weight norm"])
    close(drawn, document["importance"]["random"])


@functools.cache
def signed_gradients(windows: int) -> np.ndarray:
    model = language_model()
    loss = heads.gated_loss(model.config)
    step = jax.jit(lambda *given: importance.taylor(loss, *given))
    rows = ranking_windows()[:windows]
    return np.stack([np.asarray(step(model.params, jnp.ones(SHAPE), row[None])) for row in rows])


def check_gradients(document: dict[str, Any]) -> None:
    """The importances by gradient, on all windows."""
    signed, told = signed_gradients(24), document["importance"]
    close(abs(signed).mean(0), told["gate gradient"])
    close(signed.mean(0), told["taylor"])
    close(signed[:4].mean(0), told["taylor on the windows of the ablation"])


@functools.cache
def repeats(seed: int) -> Any:
    vocabulary = jnp.arange(1000, 40_000, dtype=jnp.int32)
    pad = language_model().config.pad_id
    draw = jax.jit(lambda key: repeated_tokens(key, 4, 50, vocabulary, first_id=pad))
    return draw(jax.random.key(seed))


@functools.cache
def copied_loss(closed: tuple[tuple[int, int], ...]) -> float:
    """The loss of what is copied with some heads closed."""
    model = language_model()
    gates = jnp.asarray(head_mask(np.array(closed).reshape(-1, 2), len(closed), SHAPE), jnp.float32)
    losses = np.asarray(copied_losses()(model.params, repeats(1), gates))
    return float(losses[np.asarray(copied_positions(repeats(1), 50))[:, 1:]].mean())


@functools.cache
def copied_losses() -> Any:
    config = language_model().config
    return jax.jit(
        lambda params, ids, gates: smollm2.token_losses(params, ids, config=config, gates=gates)
    )


def check_induction(document: dict[str, Any]) -> None:
    """The loss of what is copied: of the whole model, without the heads, without some controls."""
    found = document["induction"]
    close(copied_loss(()), found["whole"]["copied"])
    for closed, told in (
        (found["top"], found["zero"]),
        (found["controls"][0], found["zero controls"][0]),
    ):
        close(copied_loss(tuple(map(tuple, closed))), told["copied"])


def check_removal(document: dict[str, Any]) -> None:
    """How many heads each layer keeps, from the importances of the file."""
    scores = np.array(document["importance"]["gate gradient"])
    keep = head_mask(removal_order(scores), 81, SHAPE)
    told = document["removal"]
    assert told["heads"] == (~keep).sum() == 81
    assert told["query heads, repeat"] == np.maximum(keep.sum(1), 1).tolist()


# heads-smollm2.csv, heads-minilm.csv


def measured_smollm2(layers: int, folder: Any) -> Any:
    """The table of the first layers' heads, written as the experiment does."""
    model = first_layers(language_model(), layers)
    sums = heads.smollm2_sums(model)
    scoring = heads.windows(model, "validation", 24, 101)
    on_text = heads.text_by_text(sums, model.params, scoring)
    on_repeats = add_texts(heads.text_by_text(sums, model.params, repeats(0)))
    names = ("induction", "same token")
    scored = {f"{name} on repeats": np.asarray(on_repeats[name].mean) for name in names}
    heads.write_heads(folder / "heads.csv", on_text, scored)
    return folder / "heads.csv"


def measured_minilm(folder: Any) -> Any:
    batch = tokenize(encoder(), heads.sentences(24))
    found = heads.text_by_text(heads.minilm_sums(), encoder().params, *batch)
    heads.write_heads(folder / "heads.csv", found, {})
    return folder / "heads.csv"


def check_table(found: dict[str, np.ndarray], told: dict[str, np.ndarray]) -> None:
    """All columns, intervals included, of the heads that were measured again."""
    assert list(found) == list(told)
    rows = len(found["layer"])
    for name, column in found.items():
        np.testing.assert_allclose(
            column, told[name][:rows], rtol=2e-3, atol=2e-3, equal_nan=True, err_msg=name
        )


# pruning.json


def orders_of(document: dict[str, Any]) -> dict[str, np.ndarray]:
    """The orders in which heads go, from heads.json; those ranked again from the file itself."""
    scores = {k: np.array(v) for k, v in result("heads.json")["importance"].items()}
    orders = {k: removal_order(scores[k]) for k in ("ablation", "gate gradient", "taylor")}
    orders["sign of the loss without it"] = removal_order(-scores["ablation"])
    drawn = jax.random.uniform(jax.random.key(0), SHAPE)
    return orders | {
        "random 0": removal_order(drawn),
        "iterative": np.array(document["smollm2"]["orders"]["iterative"]),
    }


@functools.cache
def scorer(length: int, texts: int) -> Any:
    model = language_model()
    ids = pruning.passages(model, "validation", 24, length)[:texts]
    return pruning.smollm2_scores(model, model.params, ids)


@functools.cache
def scored(length: int, texts: int, keep: bytes) -> np.ndarray:
    mask = np.frombuffer(keep, bool).reshape(SHAPE)
    return np.asarray(scorer(length, texts)(mask))


def scores_without(length: int, texts: int, closed: Any) -> np.ndarray:
    return scored(length, texts, head_mask(closed, len(closed), SHAPE).tobytes())


def check_whole(document: dict[str, Any]) -> None:
    """Loss and accuracy of the whole model, text by text."""
    told = np.array(document["smollm2"]["whole"])[:, :TEXTS]
    close(scores_without(33, TEXTS, np.zeros((0, 2), int)), told)


def check_curves(document: dict[str, Any]) -> None:
    """A point of each of six curves, text by text."""
    orders, curves = orders_of(document), document["smollm2"]["curves"]
    for name, count in CURVES:
        line = curves[name]
        told = np.array(line["scores"])[line["heads"].index(count)][:, :TEXTS]
        close(scores_without(33, TEXTS, orders[name][:count]), told)


def check_longer(document: dict[str, Any]) -> None:
    """The longer passages of C25: the whole model, and three orders."""
    orders, longer = orders_of(document), document["smollm2"]["longer"]
    orders["whole"] = np.zeros((0, 2), int)
    for name in ("whole", "gate gradient", "iterative", "ablation"):
        told = np.array(longer[name])[:, :LONGER]
        close(scores_without(129, LONGER, orders[name][:81]), told)


def check_alike(document: dict[str, Any]) -> None:
    """pruning-alike.json: two passages, whole and without 30% of the heads in five orders."""
    found = document["smollm2"]
    signed = np.array(found["gradient of the ranking"])
    close(signed_gradients(1)[0], signed[0])
    scores = {k: np.array(v) for k, v in result("heads.json")["importance"].items()}
    orders = {
        "gate gradient": removal_order(abs(signed).mean(0)),
        "gate gradient, 24 windows": removal_order(scores["gate gradient"]),
        "ranked again": np.array(found["ranked again"]),
        "ablation": removal_order(scores["ablation"]),
        "sign of the loss without it": removal_order(-scores["ablation"]),
    }
    whole = np.array(found["whole"])[:, :LONGER]
    close(scores_without(129, LONGER, np.zeros((0, 2), int)), whole)
    for name, order in orders.items():
        line = found["curves"][name]
        told = np.array(line["scores"])[line["heads"].index(81)][:, :LONGER]
        close(scores_without(129, LONGER, order[:81]), told)


def check_together(document: dict[str, Any]) -> None:
    """Heads that are not missed alone: one alone, all of them, and the sums of the ablation."""
    together, base = document["smollm2"]["together"], np.zeros((0, 2), int)
    whole = scores_without(33, TEXTS, base)[0]
    members = np.array(together["heads"])
    for closed, told in (
        (members[:1], together["alone"][0]),
        (members[together["sets"][-1]["members"]], together["sets"][-1]["rise"]),
    ):
        close(scores_without(33, TEXTS, closed)[0] - whole, told[:TEXTS])
    sums = document["smollm2"]["random together"]
    gates = np.ones(SHAPE, np.float32)
    loss = loss_with(gates.tobytes())
    close(loss, sums["loss"])
    alone = np.array(result("heads.json")["importance"]["ablation"])
    keep = head_mask(removal_order(abs(alone)), 64, SHAPE)
    joint = loss_with(keep.astype(np.float32).tobytes()) - loss
    told = next(each for each in sums["least"] if each["size"] == 64)
    close([alone[~keep].sum(), joint], [told["sum"], told["joint"]])


@functools.cache
def sentence_scorer() -> Any:
    texts = pruning.sentences("validation", 24, 6)
    score = pruning.minilm_scores(encoder().params, *tokenize(encoder(), texts))
    return lambda keep: score(keep).reshape(2, 24, 6).mean(-1)


@functools.cache
def sentences_without(keep: bytes) -> np.ndarray:
    return sentence_scorer()(np.frombuffer(keep, bool).reshape(6, 12))


def check_sentences(document: dict[str, Any]) -> None:
    """MiniLM: the last point of three curves."""
    found = document["minilm"]
    drawn = jax.random.uniform(jax.random.key(0), (6, 12))
    orders = {name: removal_order(np.array(found["importance"][name])) for name in
              ("ablation", "curvature")} | {"random 0": removal_order(drawn)}  # fmt: skip
    for name, order in orders.items():
        line = found["curves"][name]
        keep = head_mask(order, line["heads"][-1], (6, 12))
        close(sentences_without(keep.tobytes())[0], np.array(line["scores"])[-1, 0])


@functools.cache
def sentence_ablation(layer: int, head: int) -> float:
    """How far the embeddings of 24 training sentences turn without one head."""
    embed = jax.jit(minilm.embed)
    batch = tokenize(encoder(), pruning.sentences("train", 24, 1))
    gates = jnp.ones((6, 12)).at[layer, head].set(0)
    whole, without = (
        np.asarray(embed(encoder().params, *batch, **given), np.float64)
        for given in ({}, {"gates": gates})
    )
    return float(1 - (whole * without).sum(1).mean())


def check_sentence_ablation(document: dict[str, Any]) -> None:
    """MiniLM: the importance of three heads by ablation."""
    for layer, head in ((0, 0), (2, 7), (5, 11)):
        told = document["minilm"]["importance"]["ablation"][layer][head]
        close(sentence_ablation(layer, head), told, atol=2e-6, rtol=0.02)


# gates.json, the part on SmolLM2


@functools.cache
def before_training(row: int, is_whole: bool) -> float:
    model = language_model()
    ids = heads.windows(model, "validation", 24, 101)[row : row + 1]
    keep = gates_smollm2.kept_heads(30, 0.3) | is_whole
    return float(compiled_loss()(model.params, jnp.asarray(keep, jnp.float32), ids))


def check_before_training(document: dict[str, Any]) -> None:
    """The losses before the few steps of training, of three windows."""
    for row in (0, 11, 23):
        for name, is_whole in (("whole", True), ("removed heads", False)):
            close(before_training(row, is_whole), document["smollm2"][name]["before"][row])


# emergence.json, the part on trained heads


def check_ranks(document: dict[str, Any]) -> None:
    """The loss of the whole SmolLM2, which those with less rank are compared with."""
    close(whole_losses(), document["ranks"]["SmolLM2"]["loss"]["whole"])


@functools.cache
def whole_losses() -> np.ndarray:
    model = language_model()
    ids = heads.windows(model, "validation", 8, 101)
    losses = [compiled_loss()(model.params, jnp.ones(SHAPE), row[None]) for row in ids]
    return np.array(losses, np.float64)


# quantization.json


@functools.cache
def moved_excesses(strength: float, seed: int) -> dict[str, np.ndarray]:
    """The excess of the heads of the first two layers by kind, with the weights moved."""
    model = first_layers(language_model(), 2)
    params = model.params
    if strength:
        params = jax.jit(quantization.moved)(params, grid_steps(), strength, seed)
    text = heads.windows(model, "validation", 24, 101)
    sequences = jnp.concatenate([repeats(1), repeats(2)])
    return quantization.excesses(heads.smollm2_sums(model), params, text, sequences)


@functools.cache
def grid_steps() -> Any:
    return quantization.steps_of_file()


def check_moved(document: dict[str, Any]) -> None:
    """The heads of two layers as stored, and with the first and the last draw of the weights."""
    first, last = document["draws"][0], document["draws"][-1]
    for told, strength, seed in (
        (document["stored"], 0.0, 0),
        (first, first["steps"], first["seed"]),
        (last, last["steps"], last["seed"]),
    ):
        for kind, found in moved_excesses(strength, seed).items():
            close(found, np.array(told["excess"][kind])[:2], atol=1e-3)


# heads-in-use.json


@functools.cache
def bench(batches: int) -> Any:
    """The first sequences and texts of the experiment, with the heads of heads.json."""
    top = np.array(result("heads.json")["induction"]["top"])
    return heads_in_use.Bench(language_model(), top, heads_in_use.Sizes(batches=batches))


@functools.cache
def means_of_repeats() -> Any:
    inside = bench(1)
    drawn = heads_in_use.sequences(inside.model.config, 13, inside.sizes)
    return inside.plain(drawn).outputs


@functools.cache
def copied_again(heads: tuple[tuple[int, int], ...], is_by_mean: bool) -> np.ndarray:
    """The loss of the first eight sequences on what can be copied."""
    inside = bench(1)
    means = means_of_repeats() if is_by_mean else None
    ids = inside.repeats[0]
    return inside.copied(inside.plain(ids, np.array(heads).reshape(-1, 2), means), ids)


@functools.cache
def text_again(heads: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The loss of eight of the sixteen texts, closed by zero."""
    inside = bench(2)
    run = inside.plain(inside.texts()[0], np.array(heads).reshape(-1, 2))
    return np.asarray(run.losses).mean(-1)


@functools.cache
def routed_again(number: int) -> dict[str, Any]:
    """What one sender's keys leave of the induction scores, and of copying."""
    inside = bench(1)
    found = heads_in_use.senders(previous_of_heads(), 17, inside.sizes)
    sender = (found[0] + found[1])[number]
    return heads_in_use.routes_from(inside, [sender], means_of_repeats(), ("keys",))


def previous_of_heads() -> np.ndarray:
    table = read_table(DATA / "heads-smollm2.csv")
    return np.asarray(table["previous"]).reshape(SHAPE)


def check_closed(document: dict[str, Any]) -> None:
    """Closing the eight by zero and by means, and a draw of others; the texts."""
    found, others = document["closed"], document["controls"]
    eight = tuple(map(tuple, document["top"]))
    drawn = tuple(map(tuple, others[0]))
    for told, heads_, is_by_mean in (
        (found["whole"], (), False), (found["zero"], eight, False), (found["mean"], eight, True),
        (found["mean controls"][0], drawn, True),
    ):  # fmt: skip
        close(copied_again(heads_, is_by_mean), told["copied"][:8])
    for told, heads_ in ((found["whole"], ()), (found["zero"], eight)):
        close(text_again(heads_), told["text"][:8])


def check_routes(document: dict[str, Any]) -> None:
    """The strongest sender and a control, by keys and altogether."""
    told = document["routes"]
    for number, kept in ((0, told["looking back"][0]), (5, told["others"][0])):
        for way, found in routed_again(number).items():
            close(found["scores"], kept[way]["scores"], atol=2e-3)
            close(found["copied"], kept[way]["copied"])
    assert told["whole"]["difference"] < 1e-4


@functools.cache
def later_again(name: str) -> dict[str, Any]:
    """What the keys of later senders leave of the induction scores, and of copying."""
    heads_ = later_senders.sets(later_senders.Sizes())[name]
    return heads_in_use.routes_from(bench(1), heads_, means_of_repeats(), ("keys",))


def check_later(document: dict[str, Any]) -> None:
    """One later sender, and all three senders, by keys and altogether."""
    for name in ("19.3", "first and later"):
        told = document["senders"][name]
        for way, found in later_again(name).items():
            close(found["scores"], told[way]["scores"], atol=2e-3)
            close(found["copied"], told[way]["copied"])


# The cache in fewer bits.


@functools.cache
def rounded(scheme: str) -> dict[str, Any]:
    """The first text read with a rounded cache."""
    model = language_model()
    ids = heads.windows(model, "test", cache_bits.TEXTS, cache_bits.LENGTH + 1)[:1]
    found = cache_bits.measure(model.params, ids, scheme, model.config)
    return {name: float(part[0]) for name, part in found.items()}


def check_cache_bits(document: dict[str, Any]) -> None:
    """Loss and errors of one text, without rounding and in three of the other forms."""
    for scheme in ("float32", "8 bits", "4 bits", "4 bits, keys by feature"):
        told = document["found"][scheme]
        assert document["bits"][scheme] == cache_bits.bits_of(scheme), scheme
        for name, value in rounded(scheme).items():
            # A number near the middle between two steps may fall to either side elsewhere.
            np.testing.assert_allclose(told[name][0], value, rtol=5e-3, atol=1e-4, err_msg=scheme)
        assert all(len(each) == document["config"]["texts"] for each in told.values())
    assert not any(document["found"]["float32"]["key"])


@functools.cache
def few_keys(layers: int = 4) -> Any:
    """What the first layers attend to in the first passage, every key being read."""
    sizes = papers.Sizes(layers=layers)
    bench = papers.Bench(sizes)
    text = pruning.passages(bench.model, "validation", sizes.texts, sizes.longer)[:1]
    noise = np.random.default_rng(1).random((sizes.longer, sizes.longer))
    noise = jnp.asarray(noise, jnp.float32)
    return bench.by_keys(bench.params, text, noise, len(papers.WAYS))


def check_few_keys(document: dict[str, Any]) -> None:
    """Shares of attention, largest scores and agreement, in four layers of the first passage."""
    found, stored = few_keys(), document["keys of a query"]
    for name in ("recalled", "recalled of the rest", "largest", "agreement"):
        told = np.array(stored[name])[0, :4]
        np.testing.assert_allclose(found[name], told, err_msg=name, rtol=5e-3, atol=5e-3)


@functools.cache
def merged_minilm() -> Any:
    """MiniLM's embeddings with three key heads, and its largest scores."""
    return papers.of_minilm(papers.Sizes(minilm_groups=(3,)))


def check_merged_minilm(document: dict[str, Any]) -> None:
    """Cosines of merged and virtual heads, shares of the weights, largest scores."""
    found, stored = merged_minilm(), document["of minilm"]
    for name, values in found["cosines"].items():
        np.testing.assert_allclose(values, stored["cosines"][name], err_msg=name, atol=2e-3)
    for kind, shares in found["held"].items():
        np.testing.assert_allclose(shares["3"], stored["held"][kind]["3"], err_msg=kind, **CLOSE)
    np.testing.assert_allclose(found["largest"], stored["largest"], **CLOSE)


@functools.cache
def heads_of_a_token() -> Any:
    """Losses where a token keeps five heads of a layer."""
    return papers.heads_of_a_token(papers.Bench(papers.Sizes(heads=(5,))))


def check_heads_of_a_token(document: dict[str, Any]) -> None:
    """Losses of all passages: five heads chosen, the same five, five at random."""
    for name, losses in heads_of_a_token().items():
        told = document["heads of a token"][name]
        np.testing.assert_allclose(losses, told, err_msg=name, rtol=5e-3)
