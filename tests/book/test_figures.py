"""Figures in both themes: their colors in the dark, and what they say of their size."""

import base64
import io
import json

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

mpl.use("Agg")
import matplotlib.pyplot as plt

from mha_book.plotting import PALETTE, attention_map, figure_data, use_book_style
from tests.book.extensions import ROOT, figures
from tests.book.test_pages import NOW
from tests.test_plotting import contrast

GROUND = "#121212"  # of the theme; the test in the browser looks at the page itself


def rgb(color: str) -> np.ndarray:
    return np.array(list(bytes.fromhex(color[1:]))) / 255


@pytest.fixture(scope="module")
def drawn() -> dict[str, bytes]:
    """A figure as SVG, and one with too many lines for that, as PNG."""
    with plt.rc_context():
        use_book_style()
        figure, (left, right) = plt.subplots(1, 2, figsize=(5.0, 3.0))
        attention_map(np.eye(3), ["a", "[SEP]", "b"], ax=left)
        for n, color in enumerate(PALETTE):
            right.plot([0, 1], [n, n], "o-", color=color, label=f"$x^{n}$")
        right.legend(fontsize=8)
        right.axhspan(0, 1, color="0.8")
        svg = figure_data(figure)["image/svg+xml"].encode()
        dense, ax = plt.subplots(figsize=(5.0, 3.0))
        ax.plot(np.random.default_rng(0).normal(size=(2000, 20)), linewidth=0.3)
        png = base64.b64decode(figure_data(dense)["image/png"])
        plt.close("all")
    return {"svg": svg, "png": png}


# The matrix of hue-rotate(180deg) in CSS's filter effects, and invert(0.93) before it.
LUMA = np.array([0.213, 0.715, 0.072])
TURNED = 2 * LUMA - np.eye(3)


def test_the_palette_stands_out_from_both_grounds():
    css = (ROOT / "book/_static/book.css").read_text(encoding="utf8")
    assert "filter: invert(0.93) hue-rotate(180deg);" in css
    for color, least in [*((color, 3) for color in PALETTE), ("#000000", 12)]:
        after = np.clip(TURNED @ (0.93 - 0.86 * rgb(color)), 0, 1)
        assert contrast(rgb(color), (1, 1, 1)) >= least, color
        assert contrast(after, rgb(GROUND)) >= least, color
    assert abs(0.93 - 0.86 - rgb(GROUND)).max() < 1 / 255, "white is the page's ground"


def test_figures_have_two_widths_and_labels_of_one_size():
    for page, text in NOW.items():
        shown = [x.get("data", {}) for c in json.loads(text)["cells"] for x in c.get("outputs", ())]
        for svg in filter(None, ("".join(data.get("image/svg+xml", "")) for data in shown)):
            width, _, label = figures.facts(svg.encode())
            assert width < 641 or abs(width - 744) < 20, page
            assert label == pytest.approx(14.67, abs=0.1), page


def test_what_a_picture_says_of_itself(drawn):
    width, height, label = figures.facts(drawn["svg"])
    assert label == pytest.approx(11 * 4 / 3, abs=0.01)  # whatever it was drawn with
    assert (width, height) == pytest.approx((640, 3 * 96), abs=20)  # cut close to what is drawn
    assert figures.facts(drawn["svg"].partition(figures.NARROW)[2])[0] == pytest.approx(480, abs=1)
    width, height, label = figures.facts(drawn["png"])
    assert label == pytest.approx(11 * 4 / 3)
    assert (width, height) == pytest.approx((640, 3 * 96), abs=20)
    file = io.BytesIO()
    Image.new("RGB", (300, 150)).save(file, "png", dpi=(150, 150))
    assert figures.facts(file.getvalue()) == pytest.approx((192, 96, 0), abs=0.1)
    assert figures.facts(b'<svg viewBox="0 0 1 1"/>') is None
