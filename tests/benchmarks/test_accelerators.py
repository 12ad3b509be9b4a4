"""The command that compiles for accelerators: what it plans, counts, gives up and takes up."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accelerators
from accelerators import Program, plan, traced
from harness.report import read_result
from mha_book.models import smollm2
from tests.benchmarks.paths import BENCHMARKS, ROOT
from tests.models.small import small_smollm2


def test_a_program_that_takes_too_long_is_given_up():
    row = accelerators.compile_within(Program("attention", "reference", 256), "v6e", 0.01)
    assert (row["status"], row["label"].split()[1]) == ("given up", "reference")


def test_what_a_program_is_made_from_has_a_digest():
    """It changes with the program, and neither from call to call nor with the place of a file."""
    program = Program("attention", "reference", 256)
    digest = traced(program, "v6e")
    assert digest == traced(program, "v6e") == traced(program, "h100")
    others = [program._replace(mask="full"), program._replace(dtype="float32")]
    assert len({digest, *(traced(other, "v6e") for other in others)}) == 3
    assert traced(Program("attention", "cudnn", 256, "float32"), "h100") is None


def test_the_layers_in_one_loop_are_the_model():
    params, config, _ = small_smollm2(head_dim=64, d_model=17, vocab_size=23)
    stacked = params._replace(layers=jax.tree.map(lambda *x: jnp.stack(x), *params.layers))
    tokens = jnp.asarray([[0, 5, 7, 22, 1, 5, 3]])
    expected = jax.jit(lambda p: smollm2.forward(p, tokens, config=config))(params)
    found = jax.jit(lambda p: accelerators.scanned_logits(p, tokens))(stacked)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    loss = jax.jit(lambda p: accelerators.scanned_loss(p, tokens))(stacked)
    told = jax.nn.logsumexp(expected[0, :-1], -1) - expected[0, jnp.arange(6), tokens[0, 1:]]
    np.testing.assert_allclose(loss, jnp.mean(told), rtol=1e-4)


@pytest.mark.needs_libtpu
def test_the_command_compiles_and_takes_up_where_it_stopped(tmp_path):
    command = [
        sys.executable, str(BENCHMARKS / "accelerators.py"), "--quick", "--out", str(tmp_path),
        "--targets", "v6e", "--only", "attention splash T=256 causal forward bfloat16 N=8",
    ]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "compiled, not run" in done.stdout
        document = read_result(tmp_path / "compiled-v6e.json")
        assert [run["programs"] for run in document["runs"]] == [2]
        assert {row["status"] for row in document["programs"]} == {"compiled"}
        reached = {row["label"] for row in document["programs"]}
        every = {program.label for program in plan("v6e", (256,))}
        assert set(document["left"]) == every - reached
