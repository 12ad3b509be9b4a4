r"""What rank the scores of real heads have, and what the models lose where it is cut.

The scores of a head are $q^i \cdot k^j$. Their values *on text* have the singular values of
$\Sigma_q^{1/2} \Sigma_k^{1/2}$, with $\Sigma_q$ the second moments of the queries and $\Sigma_k$
the covariance of the keys, both after the rotation where there is one: a vector added to all keys
changes no weight of attention. With $U_r$ the first $r$ left singular vectors of that product, the
scores of rank $r$ that are nearest in the mean square are those of the queries
$q\, \Sigma_q^{-1/2} U_r U_r^\top \Sigma_q^{1/2}$.

Shapes: ``L`` layers, ``N`` heads, ``H`` width of a head, ``D`` of the model.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import sentences, windows
from experiments.shared import Run, first_layers
from mha_book.layers import rms_norm
from mha_book.models import minilm, smollm2
from mha_book.models.interface import next_token_losses
from mha_book.models.tokens import tokenize
from mha_book.multihead.layer import project_heads
from mha_book.multihead.parameters import MultiHeadParams, init_multi_head
from mha_book.rope import rotary_angles, rotate
from mha_book.specialization import patching

# fitted: windows that the directions are found on; scored: windows, of other years, that the
# loss is measured on; sentences: the first half of them are read.
Ranks = fields(
    layers=30, fitted=16, scored=8, context=101, smollm2=(2, 4, 8, 16, 24, 32, 48, 64),
    sentences=48,
)  # fmt: skip
QUICK_RANKS = Ranks(1, 2, 2, 9, (4, 64), 8)


class Moments(NamedTuple):
    """Sums over positions; ``(…, H, H)`` and ``(…, H)``."""

    queries: Any  # of the outer products of queries
    keys: Any  # of those of keys
    key: Any  # of keys
    count: Any  # how many positions


def moments(query: jax.Array, key: jax.Array, real: jax.Array) -> Moments:
    """Return the sums of a batch, ``(B, N, T, H)`` each; only ``real`` ``(B, T)`` positions."""
    shown = real[:, None, :, None]
    q, k = jnp.where(shown, query, 0.0), jnp.where(shown, key, 0.0)
    outer = "bnti,bntj->nij"
    count = real.sum().astype(jnp.float32)
    return Moments(jnp.einsum(outer, q, q), jnp.einsum(outer, k, k), k.sum((0, 2)), count)


def roots(found: Moments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Return $\Sigma_q^{1/2}$, its inverse and $\Sigma_k^{1/2}$ in float64."""
    count = np.asarray(found.count, np.float64)
    mean = np.asarray(found.key, np.float64) / count
    of_queries = np.asarray(found.queries, np.float64) / count
    of_keys = np.asarray(found.keys, np.float64) / count - mean[..., :, None] * mean[..., None, :]

    def power(matrix: np.ndarray, exponent: float) -> np.ndarray:
        values, vectors = np.linalg.eigh(matrix)
        values = np.maximum(values, 1e-6 * values.max(-1, keepdims=True))
        return (vectors * values[..., None, :] ** exponent) @ np.swapaxes(vectors, -1, -2)

    return power(of_queries, 0.5), power(of_queries, -0.5), power(of_keys, 0.5)


def cut(found: Moments, rank: int) -> np.ndarray:
    """Return by what to multiply queries for the nearest scores of a rank, ``(…, H, H)``."""
    root, inverse, of_keys = roots(found)
    left = np.linalg.svd(root @ of_keys)[0][..., :rank]
    return inverse @ left @ np.swapaxes(left, -1, -2) @ root


def random_cut(shape: tuple[int, ...], rank: int, seed: int) -> np.ndarray:
    """Return projections on random subspaces, of the same rank."""
    normal = np.random.default_rng(seed).normal(size=shape)
    basis = np.linalg.qr(normal)[0][..., :rank]
    return basis @ np.swapaxes(basis, -1, -2)


def widths_of(singular: np.ndarray) -> dict[str, np.ndarray]:
    r"""Return how many of the largest energies $\sigma^2$ ``(…, H)`` hold 90% and 99% of them."""
    energy = np.sort(np.asarray(singular) ** 2, -1)[..., ::-1]
    share = np.cumsum(energy, -1) / energy.sum(-1, keepdims=True)
    return {f"{part}%": (share < part / 100).sum(-1) + 1 for part in (90, 99)}


def drawn_like(params: MultiHeadParams, seed: int) -> MultiHeadParams:
    """Return a layer of the same shape as it is before training, without biases."""
    d_model, num_heads, head_dim = params.w_q.shape
    key, kv = jax.random.key(seed), params.w_k.shape[1]
    return init_multi_head(key, d_model, num_heads, num_kv_heads=kv, head_dim=head_dim)


def of_model(real, drawn) -> dict[str, Any]:
    """Return the dimensions in use by every head, ``(L, N)`` each, and by heads drawn at random."""

    def on_text(found: list[Moments]) -> np.ndarray:
        singular = []
        for each in found:
            root, _, of_keys = roots(each)
            singular.append(np.linalg.svd(root @ of_keys)[1])
        return np.stack(singular)

    return {"text": widths_of(on_text(real)), "text, untrained": widths_of(on_text(drawn))}


def by_rank(ranks, real, shape, measure) -> dict[str, dict[str, Any]]:
    """Return what a model gives with all scores cut to each rank, as fitted and at random."""
    found: dict[str, dict[str, Any]] = {"fitted": {}, "random": {}}
    for rank in ranks:
        fitted = np.stack([cut(each, rank) for each in real])
        for way, cuts in (("fitted", fitted), ("random", random_cut(shape, rank, rank))):
            found[way][str(rank)] = measure(jnp.asarray(cuts, jnp.float32))
            print(f"rank {rank}, {way}: {found[way][str(rank)].mean():.3f}", flush=True)
    return found


def of_smollm2(sizes: Ranks) -> dict[str, Any]:
    """Return the ranks of SmolLM2's heads, and its loss with the scores of all heads cut."""
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    config, params = model.config, model.params
    times = config.num_heads // config.num_kv_heads
    untrained = [drawn_like(x.attention, i) for i, x in enumerate(params.layers)]
    given = windows(model, "train", sizes.fitted, sizes.context)
    angles = rotary_angles(jnp.arange(sizes.context), config.head_dim, config.rope_theta)

    def scores(layer: MultiHeadParams, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k = (rotate(project_heads(x, w), angles) for w in (layer.w_q, layer.w_k))
        return q, jnp.repeat(k, times, axis=1)

    @jax.jit
    def sums(params: Any, untrained: Any, ids: jax.Array) -> Any:
        _, records = smollm2.forward_with_intermediates(params, ids, config=config)
        real, drawn = [], []
        for layer, other, record in zip(params.layers, untrained, records, strict=True):
            x = rms_norm(record.inputs, layer.attention_norm, config.epsilon)
            shown = jnp.ones(ids.shape, bool)
            inside = record.intermediates
            real.append(moments(inside.query, jnp.repeat(inside.key, times, axis=1), shown))
            drawn.append(moments(*scores(other, x), shown))
        return real, drawn

    each = [sums(params, untrained, ids[None]) for ids in given]
    real, drawn = jax.tree.map(lambda *x: sum(np.asarray(y, np.float64) for y in x), *each)

    @jax.jit
    def losses(params: Any, cuts: jax.Array, ids: jax.Array) -> jax.Array:
        def hook(site: str, number: int, array: jax.Array) -> jax.Array:
            return jnp.einsum("bnth,nhg->bntg", array, cuts[number]) if site == "query" else array

        logits = patching.hooked_forward(params, ids, hook, config=config)
        return next_token_losses(logits[:, :-1], ids).mean(1)

    scored = windows(model, "validation", sizes.scored, sizes.context)
    shape = (sizes.layers, config.num_heads, config.head_dim, config.head_dim)
    whole = np.asarray(jax.jit(smollm2.token_losses, static_argnames="config")(
        params, scored, config=config)).mean(1)  # fmt: skip
    cuts = by_rank(sizes.smollm2, real, shape, lambda cuts: losses(params, cuts, scored))
    return {**of_model(real, drawn), "loss": {"whole": whole, **cuts}}


def of_minilm(sizes: Ranks) -> dict[str, Any]:
    """Return the ranks of MiniLM's heads."""
    model = minilm.load_minilm()
    layers = [layer.attention for layer in model.params.layers]
    untrained = [drawn_like(layer, i) for i, layer in enumerate(layers)]
    ids, lengths = tokenize(model, sentences(sizes.sentences))
    half = sizes.sentences // 2

    @jax.jit
    def sums(params: Any, untrained: Any, ids: jax.Array, lengths: jax.Array) -> Any:
        _, records = minilm.encode_with_intermediates(params, ids, lengths)
        shown = jnp.arange(ids.shape[1])[None] < lengths[:, None]
        real, drawn = [], []
        for other, record in zip(untrained, records, strict=True):
            real.append(moments(record.intermediates.query, record.intermediates.key, shown))
            pair = (project_heads(record.inputs, w) for w in (other.w_q, other.w_k))
            drawn.append(moments(*pair, shown))
        return real, drawn

    real, drawn = jax.tree.map(
        np.asarray, sums(model.params, untrained, ids[:half], lengths[:half])
    )

    return of_model(real, drawn)


def rank_study(sizes: Ranks, run: Run) -> dict[str, Any]:
    studies = {"SmolLM2": of_smollm2, "MiniLM": of_minilm}
    return {
        name: run.once(f"ranks {name}", sizes, functools.partial(study, sizes), 5)
        for name, study in studies.items()
    }
