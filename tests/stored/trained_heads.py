"""Numbers of trained heads computed again from the packaged weights, as the experiments do.

A slice yields places of a stored file with what is found for them, and how near it has to be. What
is computed is kept, so that a forged file costs no second run.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import (
    cache_bits,
    catalogue,
    circuit,
    gates_smollm2,
    heads,
    heads_in_use,
    papers,
    papers_told,
    positions,
    pruning,
    pruning_alike,
    pruning_means,
    quantization,
)
from experiments import induction as on_words
from experiments.shared import first_layers, gates_without
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import tokenize
from mha_book.pruning import importance
from mha_book.pruning.order import head_mask, removal_order
from mha_book.pruning.removal import mean_ablation
from mha_book.specialization.measures import add_texts
from mha_book.specialization.synthetic import copied_positions
from mha_book.storage import read_table
from tests.stored.chance import drawn
from tests.stored.files import close, recomputed, result

SHAPE = (30, 9)
SOME = tuple(drawn("texts", 6))  # of 24, in a slice of a curve
FEW = tuple(drawn("long texts", 2, range(24)))
NONE = np.zeros((0, 2), int)
Found = Iterator[tuple[Any, ...]]
language_model = functools.cache(smollm2.load_smollm2)
encoder = functools.cache(minilm.load_minilm)


@functools.cache
def ranking_windows() -> Any:
    return heads.windows(language_model(), "train", 24, 101)


@functools.cache
def compiled_loss() -> Any:
    return jax.jit(heads.gated_loss(language_model().config))


@functools.cache
def rise_without(*closed: tuple[int, int]) -> float:
    """The rise of the loss on the windows of the ablation without some heads."""
    ids = ranking_windows()[:4]
    loss = float(compiled_loss()(language_model().params, gates_without(closed, SHAPE), ids))
    return loss - rise_without() if closed else loss


# heads.json


@recomputed
def ablation(count: int) -> Found:
    """The importance of some heads by ablation, or of all."""
    for layer, head in drawn("ablation", count):
        yield ("importance", "ablation", layer, head), rise_without((layer, head))


@recomputed
def scores_of_weights() -> Found:
    """The importances that need no text."""
    yield ("importance", "weight norm"), jax.jit(importance.weight_norm)(language_model().params)
    yield ("importance", "random"), jax.random.uniform(jax.random.key(0), SHAPE)


@functools.cache
def signed_gradients(windows: int) -> np.ndarray:
    model = language_model()
    loss = heads.gated_loss(model.config)
    step = jax.jit(lambda *given: importance.taylor(loss, *given))
    rows = ranking_windows()[:windows]
    return np.stack([np.asarray(step(model.params, jnp.ones(SHAPE), row[None])) for row in rows])


@recomputed
def gradients() -> Found:
    """The importances by gradient, on all windows."""
    signed = signed_gradients(24)
    yield ("importance", "gate gradient"), abs(signed).mean(0)
    yield ("importance", "taylor"), signed.mean(0)
    yield ("importance", "taylor on the windows of the ablation"), signed[:4].mean(0)


@functools.cache
def repeats(seed: int) -> Any:
    return heads.repeats(language_model().config, jax.random.key(seed), 4, 50)


@recomputed
def induction() -> Found:
    """The loss of what is copied: of the whole model, without the heads, without some controls."""
    model, told = language_model(), result("heads.json")["induction"]
    copied = np.asarray(copied_positions(repeats(1), 50))[:, 1:]
    run = jax.jit(
        lambda params, ids, gates: smollm2.token_losses(
            params, ids, config=model.config, gates=gates
        )
    )
    (control,) = drawn("induction", 1, range(len(told["controls"])))
    for place, closed in (
        (("whole",), NONE), (("zero",), told["top"]),
        (("zero controls", control), told["controls"][control]),
    ):  # fmt: skip
        losses = np.asarray(run(model.params, repeats(1), gates_without(closed, SHAPE)))
        yield ("induction", *place, "copied"), losses[copied].mean()


# heads-smollm2.csv, heads-minilm.csv


def measured_heads(name: str, layers: int, path: Path) -> Any:
    """The table of the heads of the first layers, written as the experiment does."""
    if name == "minilm":
        batch = tokenize(encoder(), heads.sentences(24))
        found = heads.text_by_text(heads.minilm_sums(), encoder().params, *batch)
        heads.write_heads(path, found, {})
        return read_table(path)
    model = first_layers(language_model(), layers)
    sums = heads.smollm2_sums(model)
    on_text = heads.text_by_text(sums, model.params, heads.windows(model, "validation", 24, 101))
    on_repeats = add_texts(heads.text_by_text(sums, model.params, repeats(0)))
    names = ("induction", "same token")
    scored = {f"{name} on repeats": np.asarray(on_repeats[name].mean) for name in names}
    heads.write_heads(path, on_text, scored)
    return read_table(path)


def check_table(found: dict[str, np.ndarray], told: dict[str, np.ndarray]) -> None:
    """All columns, intervals included, of the heads that were measured again."""
    assert list(found) == list(told)
    for name, column in found.items():
        close(column, told[name][: len(column)], atol=2e-3, equal_nan=True, err_msg=name)


# pruning.json, pruning-alike.json


@functools.cache
def scorer(length: int, texts: tuple[int, ...]) -> Any:
    model = language_model()
    ids = pruning.passages(model, "validation", 24, length)[np.array(texts)]
    return pruning.smollm2_scores(model, model.params, ids)


@functools.cache
def scored(length: int, texts: tuple[int, ...], keep: bytes) -> np.ndarray:
    return np.asarray(scorer(length, texts)(np.frombuffer(keep, bool).reshape(SHAPE)))


def scores_without(length: int, texts: tuple[int, ...], closed: Any) -> np.ndarray:
    return scored(length, texts, head_mask(closed, len(closed), SHAPE).tobytes())


@functools.cache
def orders_of() -> dict[str, np.ndarray]:
    """The orders in which heads go, from heads.json; those ranked again from the file itself."""
    scores = {k: np.array(v) for k, v in result("heads.json")["importance"].items()}
    orders = {k: removal_order(scores[k]) for k in ("ablation", "gate gradient")}
    orders["sign of the loss without it"] = removal_order(-scores["ablation"])
    for seed in range(5):
        orders[f"random {seed}"] = removal_order(jax.random.uniform(jax.random.key(seed), SHAPE))
    again = result("pruning.json")["smollm2"]["orders"]
    return orders | {"iterative": np.array(again["iterative"])}


@recomputed
def curves(count: int) -> Found:
    """The whole model and points of its curves, text by text."""
    told = result("pruning.json")["smollm2"]["curves"]
    yield ("smollm2", "whole", np.s_[:, SOME]), scores_without(33, SOME, NONE)
    for name, number in drawn("curves", count):
        found = scores_without(33, SOME, orders_of()[name][: told[name]["heads"][number]])
        yield ("smollm2", "curves", name, "scores", number, np.s_[:, SOME]), found


@recomputed
def alike(count: int) -> Found:
    """Two passages, whole and at points of the curves; a gradient."""
    told = result("pruning-alike.json")["smollm2"]
    signed = np.array(told["gradient of the ranking"])
    yield ("smollm2", "whole", np.s_[:, FEW]), scores_without(129, FEW, NONE)
    heads_json, earlier = result("heads.json"), result("pruning.json")["smollm2"]["orders"]
    orders = pruning_alike.orders_of(heads_json, earlier, signed, pruning_alike.Sizes())
    orders["ranked again"] = np.array(told["ranked again"])
    for name, number in drawn("alike", count):
        place = ("smollm2", "curves", name, "scores", number, np.s_[:, FEW])
        closed = orders[name][: told["curves"][name]["heads"][number]]
        yield place, scores_without(129, FEW, closed)


@recomputed
def ranking() -> Found:
    """The gradients by which that file ranks."""
    told = result("pruning-alike.json")["smollm2"]["gradient of the ranking"]
    yield ("smollm2", "gradient of the ranking"), signed_gradients(24)[: len(told)]


@recomputed
def means() -> Found:
    """Mean-ablation of two heads through the whole model, two passages, and a path of a gate."""
    model, told = language_model(), result("pruning-means.json")
    found = heads.head_means(model, model.params, ranking_windows())

    def without(closed: Any) -> Any:
        gates = gates_without(closed, SHAPE)
        return mean_ablation(model.params, gates, found), gates

    ids = ranking_windows()[:4]
    yield ("whole",), rise_without()
    for head in ((1, 3), *drawn("means", 1, [divmod(n, 9) for n in range(270)])):
        loss = float(compiled_loss()(*without([head]), ids))
        yield ("mean-ablation", *head), loss - rise_without()
    chosen = pruning_means.disagreement(result("heads.json"), 6, 30)
    yield ("paths", "heads"), chosen
    head = tuple(chosen[0].tolist())
    yield ("paths", "rises", 0, -1), rise_without(head)
    order = orders_of()["gate gradient"][:27]
    place = told["curves"]["gate gradient, 24 windows"]["heads"].index(27)
    changed, keep = without(order)
    text = pruning.passages(model, "validation", 24, 129)[np.array(FEW)]
    losses = pruning.smollm2_scores(model, changed, text)(np.asarray(keep))[0]
    yield ("curves", "gate gradient, 24 windows", "losses", place, np.s_[[*FEW]]), losses


@recomputed
def together() -> Found:
    """Heads that are not missed alone: one alone, all of them, and the sums of the ablation."""
    told = result("pruning.json")["smollm2"]
    members, last = np.array(told["together"]["heads"]), told["together"]["sets"][-1]["members"]
    whole = scores_without(33, SOME, NONE)[0]
    (one,) = drawn("alone", 1, range(len(members)))
    for place, closed in (
        (("alone", one), members[one : one + 1]),
        (("sets", -1, "rise"), members[last]),
    ):
        rise = scores_without(33, SOME, closed)[0] - whole
        yield ("smollm2", "together", *place, np.s_[[*SOME]]), rise
    alone = np.array(result("heads.json")["importance"]["ablation"])
    closed = removal_order(abs(alone))[:64]
    yield ("smollm2", "random together", "loss"), rise_without()
    sizes = [each["size"] for each in told["random together"]["least"]]
    place = ("smollm2", "random together", "least", sizes.index(64))
    yield (*place, "sum"), alone[tuple(closed.T)].sum()
    yield (*place, "joint"), rise_without(*map(tuple, closed.tolist()))


@recomputed
def sentences(points: int, count: int) -> Found:
    """MiniLM: points of its curve, and the importance of heads by ablation."""
    told = result("pruning.json")["minilm"]
    texts = pruning.sentences("validation", 24, 6)
    score = pruning.minilm_scores(encoder().params, *tokenize(encoder(), texts))
    order = removal_order(np.array(told["importance"]["ablation"]))
    line = told["curves"]["ablation"]
    for number in drawn("sentences", points):
        found = score(head_mask(order, line["heads"][number], (6, 12))).reshape(2, 24, 6).mean(-1)
        yield ("minilm", "curves", "ablation", "scores", number, 0), found[0]
    embed = jax.jit(minilm.embed)
    batch = tokenize(encoder(), pruning.sentences("train", 24, 1))
    whole = np.asarray(embed(encoder().params, *batch), np.float64)
    for head in drawn("without a head", count):
        without = embed(encoder().params, *batch, gates=gates_without([head], (6, 12)))
        turned = 1 - (whole * np.asarray(without, np.float64)).sum(1).mean()
        yield ("minilm", "importance", "ablation", *head), turned, {"atol": 2e-6, "rtol": 0.02}


# gates.json, emergence.json and quantization.json, the parts on SmolLM2


@recomputed
def before_training(count: int) -> Found:
    """The losses before the few steps of training, of some windows."""
    model, keep = language_model(), gates_smollm2.kept_heads(30, 0.3)
    ids = heads.windows(model, "validation", 24, 101)
    for row in drawn("before training", count):
        for name, gates in (("whole", np.ones(SHAPE)), ("removed heads", keep)):
            given = (jnp.asarray(gates, jnp.float32), ids[row : row + 1])
            yield ("smollm2", name, "before", row), compiled_loss()(model.params, *given)


@recomputed
def ranks() -> Found:
    """The loss of the whole SmolLM2, which those with less rank are compared with."""
    model = language_model()
    ids = heads.windows(model, "validation", 8, 101)
    losses = [compiled_loss()(model.params, jnp.ones(SHAPE), row[None]) for row in ids]
    yield ("ranks", "SmolLM2", "loss", "whole"), np.array(losses)


@recomputed
def moved(count: int) -> Found:
    """The heads of the first layers as stored, and with some draws of the weights."""
    (layers,) = drawn("depth", 1, range(1, 31))
    model, told = first_layers(language_model(), layers), result("quantization.json")["draws"]
    text = heads.windows(model, "validation", 24, 101)
    sequences = jnp.concatenate([repeats(1), repeats(2)])
    steps, sums = quantization.steps_of_file(), heads.smollm2_sums(model)
    change = jax.jit(quantization.moved)
    for place in (("stored",), *(("draws", n) for n in drawn("moved", count))):
        params = model.params
        if place[0] == "draws":
            draw = told[place[1]]
            params = change(params, steps, draw["steps"], draw["seed"])
        for kind, found in quantization.excesses(sums, params, text, sequences).items():
            yield (*place, "excess", kind, np.s_[:layers]), found, {"atol": 2e-3}


# heads-in-use.json


@functools.cache
def bench(batches: int) -> Any:
    """The first sequences and texts of the experiment, with the heads of heads.json."""
    return heads_in_use.Bench(language_model(), heads_in_use.Sizes(batches=batches))


@functools.cache
def means_of_repeats() -> Any:
    inside = bench(1)
    return inside.read(heads_in_use.sequences(inside.model.config, 13, inside.sizes)).outputs


@recomputed
def closed() -> Found:
    """Closing the eight by zero and by means, and a draw of others; the texts."""
    told, inside, texts = result("heads-in-use.json"), bench(1), bench(2)
    ids, eight = inside.repeats[0], told["top"]
    (control,) = drawn("closed", 1, range(len(told["controls"])))
    for place, heads_, means in (
        (("whole",), (), None), (("zero",), eight, None), (("mean",), eight, means_of_repeats()),
        (("mean controls", control), told["controls"][control], means_of_repeats()),
    ):  # fmt: skip
        copied = inside.copied(inside.read(ids, heads_, means), ids)
        yield ("closed", *place, "copied", np.s_[:8]), copied
    for name, heads_ in (("whole", ()), ("zero", eight)):
        losses = texts.read(texts.texts()[0], heads_).losses
        yield ("closed", name, "text", np.s_[:8]), np.asarray(losses).mean(-1)


# circuit.json


@functools.cache
def circuit_bench() -> Any:
    top = result("heads.json")["induction"]["top"]
    return circuit.Bench(language_model(), circuit.Sizes(), top)


@recomputed
def circuit_parts() -> Found:
    """Every sender's path, patterns, shares of scores; counts may move by a row."""
    bench = circuit_bench()
    for name, found in circuit.paths(bench).items():
        if name != "names":
            yield ("paths", name), found, {"atol": 2e-3}
    for name, found in circuit.patterns(bench).items():
        yield ("patterns", name, "score"), found["score"]
    for name, found in circuit.attributed(bench).items():
        yield ("attributed", name, "by key"), found["by key"], {"atol": 5e-3}


@recomputed
def circuit_of_words() -> Found:
    """One of the laboratory's sequences, with every ablation."""
    (name,) = drawn("words", 1, list(on_words.SEQUENCES))
    for what, found in on_words.on_sequence(circuit_bench(), on_words.SEQUENCES[name]).items():
        for part in found if isinstance(found, dict) else ():
            yield (name, what, part), found[part]


# catalogue.json


@functools.cache
def catalogue_bench() -> Any:
    return catalogue.Bench(catalogue.Sizes())


@recomputed
def successors() -> Found:
    """Scores of all heads on both halves; a share may move by one token of a sequence."""
    for half, found in catalogue.successors(catalogue_bench()).items():
        for name, values in found.items():
            yield ("successors", half, name), values, {"atol": 0.05}


@recomputed
def indirect_objects() -> Found:
    """What each head adds and where it attends, with all heads and without the name movers."""
    found = catalogue.indirect_objects(catalogue_bench())
    for half in catalogue.HALVES:
        for name in ("gap", "direct", "on subject", "direct without movers"):
            yield ("indirect_objects", half, name), found[half][name], {"atol": 5e-3}


# cache-bits.json, papers.json

RISE = {"rtol": 0, "atol": 5e-3}


def rises(found: dict[str, Any], told: np.ndarray) -> Found:
    """Losses of the first way, and of the others what they are more, which is what pages state."""
    first = next(iter(found))
    for name, losses in found.items():
        yield name, losses if name == first else np.asarray(losses) - found[first] + told


@recomputed
def cache_in_few_bits(count: int) -> Found:
    """Loss and errors of some texts, in every form."""
    model = language_model()
    texts = np.array(drawn("cache", count))
    ids = heads.windows(model, "test", cache_bits.TEXTS, cache_bits.LENGTH + 1)[texts]
    losses: dict[str, np.ndarray] = {}
    for scheme in cache_bits.SCHEMES:
        yield ("bits", scheme), cache_bits.bits_of(scheme)
        found = cache_bits.measure(model.params, ids, scheme, model.config)
        losses[scheme] = np.asarray(found.pop("loss"))
        for name, part in found.items():
            # A number near the middle between two steps may fall to either side elsewhere.
            yield ("found", scheme, name, texts), np.asarray(part), {"rtol": 3e-2, "atol": 1e-4}
    told = result("cache-bits.json")["found"]
    for scheme, rise in rises(losses, np.array(told["float32"]["loss"])[texts]):
        yield ("found", scheme, "loss", texts), rise, {"rtol": 0, "atol": 0.1}  # of one text


@recomputed
def few_keys(count: int) -> Found:
    """Shares of attention, largest scores and agreement, in four layers of some passages."""
    inside = papers.Bench(sizes := papers.Sizes(layers=4))
    texts = pruning.passages(inside.model, "validation", sizes.texts, sizes.longer)[::4]
    noise = np.random.default_rng(1).random((sizes.longer, sizes.longer))
    noise = jnp.asarray(noise, jnp.float32)
    for one in drawn("few keys", count):
        found = inside.by_keys(inside.params, texts[one : one + 1], noise, len(papers.WAYS))
        for name in ("recalled", "recalled of the rest", "largest", "agreement"):
            near = {"rtol": 5e-3, "atol": 5e-3}
            yield ("keys of a query", name, np.s_[one, :4]), found[name], near


@recomputed
def merged_minilm() -> Found:
    """MiniLM with three key heads: cosines, shares of the weights, largest scores."""
    found = papers.of_minilm(papers.Sizes(minilm_groups=(3,)))
    for name, values in found["cosines"].items():
        yield ("of minilm", "cosines", name), values, {"atol": 2e-3}
    for kind, shares in found["held"].items():
        yield ("of minilm", "held", kind, "3"), shares["3"]
    yield ("of minilm", "largest"), found["largest"]


LOSSES = {
    "heads of a token": papers.heads_of_a_token, "entropy orders": papers.entropy_orders,
    "merged": papers.merged_smollm2,
}  # fmt: skip


@recomputed
def losses_of_papers(part: str) -> Found:
    """Losses of all passages: with so many heads a token, in every order, with one key head."""
    count, share = (tuple(drawn(x, 1)) for x in ("heads of a token", "entropy"))
    found = LOSSES[part](papers.Bench(papers.Sizes(heads=count, removed=share)))
    for name, losses in rises(found, np.array(result("papers.json")[part][next(iter(found))])):
        yield (part, name), losses, RISE


@recomputed
def retrieving() -> Found:
    """Scores of all heads, and what is lost without those that retrieve."""
    found = papers.retrieving(papers.Bench(papers.Sizes()))
    for name in ("score", "score on the others"):  # an answer may fall to either side elsewhere
        yield ("retrieving", name), found[name], {"atol": 0.05}
    for name, right in found["right"].items():
        yield ("retrieving", "right", name), right, {"atol": 0.17}
    told = result("papers.json")["retrieving"]["plain"]["none"]
    for name, losses in rises(found["plain"], np.array(told)):
        yield ("retrieving", "plain", name), losses, RISE


# positions.json


@recomputed
def beyond_the_trained_length(count: int) -> Found:
    """One long text, read one way to 2,048 tokens past the trained length."""
    model, sizes = language_model(), positions.Sizes()
    ((way, text),) = drawn("positions", count)
    ids = positions.long_texts(model, sizes.texts, sizes.length)[text]["ids"]
    near = {"rtol": 5e-3, "atol": 5e-3}
    losses = positions.read_long(model, ids[: sizes.trained + 2 * sizes.bucket], way, sizes)
    found = positions.by_bucket(losses, sizes.bucket)
    yield ("losses", way, text, slice(None, len(found))), found, near


@recomputed
def begun_anew(count: int) -> Found:
    """The first part of pieces that are read anew, beyond the trained length and before."""
    model, sizes = language_model(), positions.Sizes()
    texts = positions.long_texts(model, sizes.texts, sizes.length)
    for text, piece in drawn("restart", count):
        ids, buckets = texts[text]["ids"][piece * sizes.trained :], sizes.trained // sizes.bucket
        if piece:
            ids = np.concatenate(([model.config.pad_id], ids))
        short = sizes._replace(trained=sizes.bucket)
        losses = positions.read_long(model, ids[: sizes.bucket], "restart", short)
        found = positions.by_bucket(losses, sizes.bucket)
        place = ("losses", "restart", text, slice(piece * buckets, piece * buckets + 1))
        yield place, found, {"rtol": 5e-3, "atol": 5e-3}


def check_told(document: dict[str, Any]) -> None:
    """What the ledger of papers quotes, from the arrays of the file."""
    assert document["told"] == papers_told.told(document, papers.Sizes())
