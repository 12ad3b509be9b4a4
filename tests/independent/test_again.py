"""What the second hand stored, it finds again."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.turns import in_turn

ROOT = Path(__file__).parents[2]


@in_turn("second hand")
@pytest.mark.needs_models
@pytest.mark.needs_torch
def test_the_second_hand_finds_the_same_again(tmp_path):
    path = tmp_path / "independent.json"
    subprocess.run([sys.executable, "-m", "tests.independent", path], cwd=ROOT, check=True)
    told = json.loads((ROOT / "book/data/independent.json").read_text(encoding="utf8"))
    found = json.loads(path.read_text(encoding="utf8"))
    assert len(found["rows"]) == len(told["rows"]) >= 20
    for one, other in zip(found["rows"], told["rows"], strict=True):
        a, b = one.pop("theirs"), other.pop("theirs")
        assert one == other
        np.testing.assert_allclose(a, b, rtol=0, atol=one["tolerance"] / 2, err_msg=one["name"])
