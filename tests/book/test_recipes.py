"""Each recipe is a program of its own, and prints what the page shows."""

import re
import subprocess
import sys

import pytest

from tests.book import gates
from tests.book.extensions import ROOT

PAGES = {x: gates.load(ROOT / "book" / f"{x}.ipynb").cells for x in ("recipes", "choosing")}
CELLS = PAGES["recipes"]
RECIPES = {c.id: c for c in CELLS if "recipe" in c.metadata.get("tags", ())}
TORCH = {  # the programs in prose
    f"{c.id}-{n}": (block, c.source)
    for cells in PAGES.values()
    for c in cells
    for n, block in enumerate(re.findall(r"^```python\n(.*?)^```$", c.source, re.M | re.S))
}


def printed(program, folder):
    file = folder / "recipe.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_from_an_empty_file(name, tmp_path):
    assert printed(RECIPES[name].source, tmp_path) == RECIPES[name].outputs[0]["text"]


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize("name", TORCH)
def test_a_program_in_torch_runs_from_an_empty_file(name, tmp_path):
    program, text = TORCH[name]
    found = printed(program, tmp_path).splitlines()
    assert found
    for line in found:  # shown on the page, or a difference of zero
        assert line in text or line.endswith("difference 0.0000"), line
