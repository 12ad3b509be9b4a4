"""Sequences that need heads of two kinds: what is asked, and where it stands."""

import jax
import numpy as np
import pytest

from mha_book.masks import causal
from mha_book.specialization.patterns import mean_score, uniform_weights, visible_pairs
from mha_book.specialization.probes import ProbeTask, probe_patterns, probe_sequences

pytestmark = pytest.mark.unoptimized
draw = jax.jit(probe_sequences, static_argnums=(1, 2))


@pytest.mark.parametrize("task", [ProbeTask(7, 3, 2, 4), ProbeTask(5, 2, 3, 4, by_place=False)])
def test_what_a_probe_asks_for_stands_where_it_is_said(task):
    drawn = jax.tree.map(np.asarray, draw(jax.random.key(0), task, 11))
    assert drawn.tokens.shape == (11, task.length)
    assert task.length == task.rows[-1] + 2
    items, named = task.colours * task.symbols, task.first_answer
    assert ((drawn.tokens >= 0) & (drawn.tokens < task.vocabulary)).all()
    sources = set()
    for row, source, near, far in zip(
        drawn.tokens, drawn.source, drawn.near, drawn.far, strict=True
    ):
        shown = row[row < items]
        assert len(shown) == task.items
        assert len(set(shown // task.symbols)) == task.items  # no colour twice
        for r, at in enumerate(task.rows):
            assert items <= row[at] < named
            assert source[r] < at - task.by_place  # before the item before the probe
            colour, symbol = divmod(int(row[source[r]]), task.symbols)
            assert colour == row[at] - items
            wanted = symbol
            if task.by_place:
                wanted += task.symbols * (row[at - 1] % task.symbols)
                assert near[r] == row[at - 1] % task.symbols
            assert far[r] == symbol
            assert row[at + 1] == named + wanted
        sources |= set(source.tolist())
    assert len(sources) == task.items - task.by_place  # all but the last are asked for


def test_the_roles_of_heads_that_are_known():
    task = ProbeTask()
    drawn = draw(jax.random.key(1), task, 5)
    visible = visible_pairs(causal(), 5, task.length - 1)
    patterns = probe_patterns(task, drawn, visible)
    null = np.mean(1 / (task.rows + 1))
    for role, pattern in enumerate(patterns):
        assert pattern.counted.sum() == 5 * task.probes
        uniform = mean_score(uniform_weights(visible), pattern)
        np.testing.assert_allclose(uniform, null, rtol=1e-6)
        for kind, other in enumerate(patterns):  # all attention on one key
            share = float(mean_score(other.score[:, None], pattern)[0])
            assert share == float(role == kind)


def test_bad_tasks(no_type_checks):
    with pytest.raises(ValueError, match="11 colours or more"):
        probe_sequences(jax.random.key(0), ProbeTask(10, before=5), 2)
    with pytest.raises(ValueError, match="an item before the first probe"):
        probe_sequences(jax.random.key(0), ProbeTask(before=0), 2)
