"""Attention on one page, and the layer at the top of its chapter: on paper, in code, on screens."""

import io
import subprocess
import sys

import pypdf
import pytest

from tests.book import gates
from tests.book.browsing import PHONE, Visitor, in_page
from tests.book.extensions import ROOT

PAGE = "attention-on-one-page"
HEADINGS = ("Formulas", "The layer in fifteen lines", "Shapes", "Masks", "Costs")
LAPTOP = {"width": 1440, "height": 900}
BOTTOMS = in_page("bottoms")


@pytest.mark.parametrize("page", [PAGE, "multi-head-layer"])
def test_fifteen_lines_run_in_an_empty_file(page, tmp_path):
    cells = {cell["id"]: cell for cell in gates.load(ROOT / "book" / f"{page}.ipynb").cells}
    source = cells["numpy"].source
    assert sum(bool(line.strip()) for line in source.splitlines()) == 15
    (tmp_path / "layer.py").write_text(source, encoding="utf8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-I", "layer.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == gates.printed(cells["numpy"]) == "(10, 64)\n"


def test_it_is_printed_on_one_side(browser, address):
    tab = Visitor(browser, address, LAPTOP, "dark")
    tab.see(f"book/{PAGE}.html")
    pdf = io.BytesIO(tab.page.pdf(format="A4", prefer_css_page_size=True))
    (paper,) = pypdf.PdfReader(pdf).pages
    assert [round(float(x) / 72 * 25.4) for x in paper.mediabox[2:]] == [210, 297]
    text = paper.extract_text()
    assert [heading for heading in HEADINGS if heading not in text] == []
    assert "Cite this page" not in text
    tab.context.close()


@pytest.mark.parametrize("window", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_layer_is_within_two_screens(browser, address, window):
    tab = Visitor(browser, address, window)
    tab.see("book/multi-head-layer.html")
    assert max(tab.page.evaluate(BOTTOMS)) <= 2
    tab.context.close()
