"""The command that compiles for accelerators: what it plans, counts, gives up and takes up."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accelerators
from accelerators import MODEL, SCANNED, Program, build, compile_program, plan, traced
from harness import compiled
from harness.report import read_result
from mha_book import init_multi_head
from mha_book.models import smollm2
from tests.benchmarks.paths import BENCHMARKS, ROOT

HLO = """HloModule jit_f, entry_computation_layout={()->f32[]}

FileNames
1 "/somewhere/f.py"

%fused_computation.1 (p: bf16[8,4]) -> bf16[4,8] {
  %p = bf16[8,4]{1,0} parameter(0)
  %copy.9 = bf16[8,4]{0,1} copy(%p)
  ROOT %transpose.1 = bf16[4,8]{1,0} transpose(%copy.9), dimensions={1,0}
}

ENTRY %main (x: bf16[8,4]) -> bf16[4,8] {
  %x = bf16[8,4]{1,0} parameter(0)
  %copy-start = (bf16[8,4]{1,0:S(1)}, bf16[8,4]{1,0}, u32[]) copy-start(%x)
  %copy.1 = bf16[8,4]{0,1:T(8,128)(2,1)} copy(%x), metadata={op_name="f" stack_frame_id=1}
  %copy.2 = pred[3]{0} copy(%mask)
  %while.1 = (s32[]{:T(128)}, /*index=5*/bf16[8,4]{1,0}) while(%tuple), body=%b
  ROOT %fusion.1 = bf16[4,8]{1,0} fusion(%copy.1), kind=kLoop, calls=%fused_computation.1
}
"""


class Text:
    def __init__(self, text):
        self._text = text

    def as_text(self):
        return self._text


def test_operations_are_counted_inside_of_fusions_and_outside():
    found = compiled.operations(Text(HLO))
    assert found == (1, 1, 1, {"bf16[8,4]": 1, "pred[3]": 1}, 8 * 4 * 2 + 3)


def test_a_digest_is_of_the_program_and_not_of_places():
    moved = HLO.replace("/somewhere", "/elsewhere").replace("stack_frame_id=1", "stack_frame_id=7")
    assert moved != HLO
    assert compiled.digest(Text(moved)) == compiled.digest(Text(HLO))
    other = HLO.replace("transpose(", "negate(")
    assert compiled.digest(Text(other)) != compiled.digest(Text(HLO))


@pytest.mark.parametrize("target", ["v6e", "h100"])
def test_the_plan_has_everything_once_and_what_matters_first(target):
    programs = plan(target)
    assert len(set(programs)) == len(programs)
    names = set(accelerators.implementations(target)) - {"flash"}
    for name in names:
        found = [p for p in programs if p.part == "attention" and p.implementation == name]
        assert len(found) == 3 * 2 * 4 * 2 * 2
    assert {p.part for p in programs} == {"attention", "layer", MODEL, SCANNED}
    first = programs[: 6 * len(names)]
    assert {(p.dtype, p.mask, p.num_kv_heads) for p in first} == {("bfloat16", "causal", 8)}


def test_a_gpu_is_described_by_its_facts():
    text = compiled.description("h100")
    assert "core_count: 132" in text
    assert "major: 9 minor: 0" in text
    assert compiled.description("v6e") == "v6e:2x2"


def test_what_an_implementation_does_not_serve_is_refused_with_its_reason():
    row = compile_program(Program("attention", "cudnn", 256, "float32"), "h100")
    assert (row["status"], row["chosen"]) == ("refused", False)
    assert "half precision" in row["reason"]


def test_an_implementation_is_built_for_the_target_and_not_for_this_machine():
    """Blocks on an accelerator take all heads at once; on a CPU they have other sizes."""
    program = Program("attention", "blockwise", 8192)
    spec = accelerators._spec(program, "v6e")
    assert (spec.platform, spec.compute_capability) == ("tpu", None)
    assert accelerators._spec(program, "b200").compute_capability == (10, 0)
    _, shapes = build(program._replace(direction="with gradients", num_kv_heads=2), "v6e")
    assert [shape[0] for shape in shapes] == [
        (1, 8, 8192, 128), (1, 2, 8192, 128), (1, 2, 8192, 128), (1, 8, 8192, 128),
    ]  # fmt: skip


def test_without_a_compiler_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accelerators.compiled, "missing", lambda target: "no compiler")
    assert accelerators.main(["--quick", "--out", str(tmp_path), "--targets", "v6e"]) == 1
    assert "v6e: no compiler" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_program_that_takes_too_long_is_given_up():
    compiler = accelerators.Compiler("v6e")
    row = compiler(Program("attention", "reference", 256), 0.01)
    assert (row["status"], row["label"].split()[1]) == ("given up", "reference")
    assert compiler._process is None
    assert accelerators._is_missing(row, 1)
    assert not accelerators._is_missing(row, 0.01)
    assert accelerators._is_missing(None, 1)


def test_what_a_program_is_made_from_has_a_digest():
    """It changes with the program, and neither from call to call nor with the place of a file."""
    program = Program("attention", "reference", 256)
    digest = traced(program, "v6e")
    assert digest == traced(program, "v6e") == traced(program, "h100")
    others = [program._replace(mask="full"), program._replace(dtype="float32")]
    assert len({digest, *(traced(other, "v6e") for other in others)}) == 3
    assert traced(Program("attention", "cudnn", 256, "float32"), "h100") is None


def test_the_layers_in_one_loop_are_the_model():
    """The logits and the loss of SmolLM2's own functions, on two layers of random weights."""
    width, hidden, config = 17, 19, smollm2.CONFIG
    small = config._replace(num_layers=2, num_heads=6, num_kv_heads=2, d_model=17, vocab_size=23)
    keys = iter(jax.random.split(jax.random.key(3), 20))

    def draw(*shape):
        return jax.random.normal(next(keys), shape) / shape[0] ** 0.5

    layers = tuple(
        smollm2.SmolLM2Layer(
            draw(width),
            init_multi_head(
                next(keys), width, 6, head_dim=64, num_kv_heads=2, use_bias=False
            ),
            draw(width), draw(width, hidden), draw(width, hidden), draw(hidden, width),
        )
        for _ in range(2)
    )  # fmt: skip
    params = smollm2.SmolLM2Params(draw(23, width), layers, draw(width))
    stacked = params._replace(layers=jax.tree.map(lambda *x: jnp.stack(x), *layers))
    tokens = jnp.asarray([[0, 5, 7, 22, 1, 5, 3]])
    expected = jax.jit(lambda p: smollm2.forward(p, tokens, config=small))(params)
    found = jax.jit(lambda p: accelerators.scanned_logits(p, tokens))(stacked)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    loss = jax.jit(lambda p: accelerators.scanned_loss(p, tokens))(stacked)
    of_model = jax.nn.logsumexp(expected[0, :-1], axis=-1)
    of_model -= expected[0, jnp.arange(6), tokens[0, 1:]]
    np.testing.assert_allclose(loss, jnp.mean(of_model), rtol=1e-5)


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
    assert "optimal_seconds" not in json.dumps(document)
