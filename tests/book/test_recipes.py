"""Each recipe is a program of its own, and prints what the page shows."""

import subprocess
import sys

import pytest

from tests.book import gates
from tests.book.extensions import ROOT

CELLS = gates.load(ROOT / "book" / "recipes.ipynb").cells
RECIPES = {c.id: c for c in CELLS if "recipe" in c.metadata.get("tags", ())}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_from_an_empty_file(name, tmp_path):
    file = tmp_path / "recipe.py"
    file.write_text(RECIPES[name].source, encoding="utf-8")
    done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == RECIPES[name].outputs[0]["text"]
