"""The evidence for the claims on how heads come to their roles, and on how wide they need to be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import tiny
from mha_book.multihead.parameters import init_multi_head
from mha_book.specialization.intervals import mean_interval
from mha_book.specialization.synthetic import ProbeTask, probe_sequences
from mha_book.storage import load_arrays, load_tree
from tests.book.verdicts import decides
from tests.stored.files import DATA, result

draw = jax.jit(probe_sequences, static_argnums=(1, 2))


@pytest.fixture(scope="module")
def weights():
    return load_arrays(DATA / "emergence.safetensors")[0]


def of_layer(setting, task, num_heads, head_dim=None):
    return tiny.TinyConfig(
        task.vocabulary, task.length, setting["d_model"], 1, num_heads, head_dim=head_dim,
        d_hidden=0, positions="rotary" if task.by_place else "none", use_bias=False,
        rope_theta=100.0,
    )  # fmt: skip


def test_c22_a_raise_at_the_start_helps_and_does_not_decide():
    """A raised head takes the role more often than its controls; half of them do not take it."""
    study = result("emergence.json")
    runs, strength = study["seeds"]["runs"], study["config"]["nudges"][0]
    roles = ("place", "content")

    def led(name, role):  # (seeds,): whether head 0 leads in this role in the end
        return np.array(runs[name]["last roles"])[..., role].argmax(1) == 0

    def own(name, role):  # (seeds,): its score in the end
        return np.array(runs[name]["last roles"])[:, 0, role]

    raised, moved, unmoved = (
        np.stack([led(name.format(role), i) for i, role in enumerate(roles)], -1)
        for name in (f"nudge {{}} {strength}", f"nudge random {strength}", "base")
    )
    assert (raised.sum(), moved.sum(), unmoved.sum(), raised.size) == (16, 7, 7, 32)
    # Each start is its own control: the difference within a start, over 16 starts.
    for control in (moved, unmoved):
        middle, half = mean_interval((raised * 1.0 - control).mean(1))
        assert middle - half > 0.05
    ends = [
        mean_interval(own(f"nudge {role} {strength}", i) - own(f"nudge random {strength}", i))
        for i, role in enumerate(roles)
    ]
    assert ends[0][0] - ends[0][1] > 0.1  # clear by place,
    assert ends[1][0] - ends[1][1] < 0 < ends[1][0]  # not decided by content
    # The raise is far beyond what chance gives, and was made at the start alone.
    natural = np.array(study["seeds"]["roles"])[:, 0]
    first = np.array(runs[f"nudge place {strength}"]["first roles"])[:, 0, 0].mean()
    assert first - natural.mean() > 4 * natural.std(1).mean()
    decides("C22", "undecided")


def form(config, width):
    """A model in half precision with heads of this width, and values 16 wide."""
    key = jax.random.key(0)
    params = tiny.init_tiny(key, config)
    attention = init_multi_head(key, config.d_model, 1, head_dim=width, value_dim=16)
    params = params._replace(layers=(params.layers[0]._replace(attention=attention),))
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float16), params)


def test_c18_one_task_leaves_nothing_to_gain_beyond_64(weights):
    study = result("emergence.json")
    setting = study["config"]
    task = ProbeTask(setting["kept"], before=8, by_place=False)
    drawn = draw(jax.random.key(12), task, 256)
    key = f"{setting['kept']} colours, width 64, 1 heads"
    row = study["widths"][key]
    losses = {}
    for width, stored in zip(row["widths"], row["loss"], strict=True):
        config = of_layer({"d_model": 64}, task, 1, width)
        params = load_tree(
            weights,
            jax.eval_shape(lambda config=config, width=width: form(config, width)),
            f"width-{width}",
        )

        def loss(params, config=config):
            params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
            losses = tiny.token_losses(params, drawn.tokens, config=config)
            return losses[:, task.rows].mean()

        losses[width] = float(jax.jit(loss)(params))
        assert losses[width] == pytest.approx(stored[0], abs=0.05 + 0.15 * stored[0])
    assert losses[2] > losses[16] + 0.1
    # Floor: at a width of 64 hardly anything is left to be gained, of the log 4 there was.
    assert losses[64] < 0.05 * np.log(4)
    for colours in (16, 64):
        row = study["widths"][f"{colours} colours, width 64, 1 heads"]
        by_width = dict(zip(row["widths"], np.array(row["loss"]), strict=True))
        middle, half = mean_interval(by_width[64] - by_width[128])
        assert middle + half < 0.05 * np.log(4)  # beyond 64 no gain of a twentieth of log 4
        middle, half = mean_interval(by_width[2] - by_width[16])
        assert middle - half > 0.05  # below 16 there is one
    decides("C18", "undecided")
