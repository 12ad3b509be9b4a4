"""Synthetic sequences: what repeats, what a probe asks for, and where it stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.masks import causal
from mha_book.specialization.patterns import (
    mean_score,
    on_duplicate_token,
    prefix_matching,
    uniform_weights,
    visible_pairs,
)
from mha_book.specialization.synthetic import (
    ProbeTask,
    copied_positions,
    probe_patterns,
    probe_sequences,
    repeated_tokens,
)

PROBES = ProbeTask(7, 3, 2, 4)
draw = jax.jit(probe_sequences, static_argnums=(1, 2))


def test_repeated_sequences():
    period = 5
    draw = jax.jit(lambda key: repeated_tokens(key, 2, period, jnp.arange(100, 131), first_id=0))
    ids = np.asarray(draw(jax.random.key(0)))
    assert ids.shape == (2, 11)
    assert (ids[:, 0] == 0).all()
    assert all(len(set(row[1:6].tolist())) == period for row in ids)
    assert not np.array_equal(ids[0], ids[1])
    pairs = jnp.asarray(np.tril(np.ones((2, 11, 11), bool)))
    pattern, same, copied = jax.jit(
        lambda pairs, ids: (
            prefix_matching(pairs, ids),
            on_duplicate_token(pairs, ids),
            copied_positions(ids, period),
        )
    )(pairs, ids)
    # Each row of the second copy has one target: the place after the same token in the first.
    assert pattern.counted.sum(1).tolist() == [period] * 2
    score = np.asarray(pattern.score)
    for row in range(6, 11):
        assert np.flatnonzero(score[0, row]).tolist() == [row - period + 1]
    assert np.flatnonzero(copied[0]).tolist() == [7, 8, 9, 10]
    assert np.flatnonzero(same.score[1, 8]).tolist() == [3]


@pytest.mark.parametrize("task", [PROBES, ProbeTask(5, 2, 3, 4, by_place=False)])
def test_what_a_probe_asks_for_stands_where_it_is_said(task):
    drawn = jax.tree.map(np.asarray, draw(jax.random.key(0), task, 11))
    assert drawn.tokens.shape == (11, task.length)
    assert task.length == task.rows[-1] + 2
    items, named = task.colors * task.symbols, task.first_answer
    assert ((drawn.tokens >= 0) & (drawn.tokens < task.vocabulary)).all()
    sources = set()
    for row, source, near, far in zip(
        drawn.tokens, drawn.source, drawn.near, drawn.far, strict=True
    ):
        shown = row[row < items]
        assert len(shown) == task.items
        assert len(set(shown // task.symbols)) == task.items  # no color twice
        for r, at in enumerate(task.rows):
            assert items <= row[at] < named
            assert source[r] < at - task.by_place  # before the item before the probe
            color, symbol = divmod(int(row[source[r]]), task.symbols)
            assert color == row[at] - items
            wanted = symbol
            if task.by_place:
                wanted += task.symbols * (row[at - 1] % task.symbols)
                assert near[r] == row[at - 1] % task.symbols
            assert far[r] == symbol
            assert row[at + 1] == named + wanted
        sources |= set(source.tolist())
    assert len(sources) == task.items - task.by_place  # all but the last are asked for


def test_the_roles_of_heads_that_are_known():
    task = PROBES
    drawn = draw(jax.random.key(1), task, 11)

    @jax.jit
    def shares(drawn):
        """The rows of each role, and the measures of uniform attention and of both roles."""
        visible = visible_pairs(causal(), 11, task.length - 1)
        patterns = probe_patterns(task, drawn, visible)
        heads = [uniform_weights(visible), *(p.score[:, None] for p in patterns)]
        scores = [mean_score(jnp.concatenate(heads, 1), pattern) for pattern in patterns]
        return [pattern.counted.sum() for pattern in patterns], scores

    for role, (rows, scores) in enumerate(zip(*shares(drawn), strict=True)):
        assert rows == 11 * task.probes
        np.testing.assert_allclose(scores[0], np.mean(1 / (task.rows + 1)), rtol=1e-6)
        # Heads with all their attention on the key of one role.
        assert scores[1:].tolist() == [float(role == kind) for kind in range(2)]


def test_the_first_token_may_be_beyond_the_dtype_of_the_vocabulary(no_type_checks):
    small = repeated_tokens(jax.random.key(0), 1, 2, np.arange(3, dtype=np.uint8), first_id=300)
    assert int(small[0, 0]) == 300
