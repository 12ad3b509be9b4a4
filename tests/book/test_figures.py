"""Figures in both themes: their dark form, their size on the page, what a reader sees of them."""

import base64
import colorsys
import io
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

mpl.use("Agg")
import matplotlib.pyplot as plt

from mha_book.plotting import PALETTE, attention_map, figure_data, use_book_style
from tests.book.extensions import ROOT, figures, toc
from tests.test_plotting import contrast

GROUND = "#121212"  # of the theme; the test in the browser looks at the page itself


def rgb(color: str) -> np.ndarray:
    return np.array(list(bytes.fromhex(color[1:]))) / 255


def dark(*colors: str) -> list[str]:
    found = figures.dark_colors(np.array([255 * rgb(color) for color in colors]).round())
    return [f"#{bytes(color).hex()}" for color in found]


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


# --- colors ---------------------------------------------------------------------------------


def test_what_stands_out_from_white_stands_out_from_the_ground():
    assert dark("#ffffff", "#000000") == [GROUND, "#ececec"]
    random = np.random.default_rng(0).integers(0, 256, (200, 3))
    colors = [f"#{bytes(color.astype(np.uint8)).hex()}" for color in random]
    contrasts = []
    for before, after in zip(colors, dark(*colors), strict=True):
        contrasts.append((contrast(rgb(before), (1, 1, 1)), contrast(rgb(after), rgb(GROUND))))
        hues = [colorsys.rgb_to_hsv(*rgb(color)) for color in (before, after)]
        if min(hue[1] * hue[2] for hue in hues) > 0.15:
            assert abs((hues[0][0] - hues[1][0] + 0.5) % 1 - 0.5) < 0.04, before
    old, new = np.array(sorted(contrasts)).T
    assert (np.diff(new) > -0.15).all(), "their order stays, but for the rounding of colors"
    assert (new > np.minimum(old, 5) * 0.99).all(), "nothing fades"
    assert (new < 1.35 * old).all()


def test_the_palette_stands_out_from_both_grounds():
    assert [*figures.DARK] == [color.lower() for color in PALETTE]
    assert dark(*PALETTE) == [*figures.DARK.values()]
    for light, twin in figures.DARK.items():
        assert contrast(rgb(light), (1, 1, 1)) >= 3, light
        assert contrast(rgb(twin), rgb(GROUND)) >= 3, twin


# --- the two kinds of files -----------------------------------------------------------------


def test_no_color_of_the_light_form_is_left(drawn):
    light = drawn["svg"].decode()
    text = figures.dark_svg(light)
    # All colors that are named, whatever they paint, are those of the rule or of the palette.
    colors = re.compile(r"#[0-9a-f]{6}\b(?=[;\"' ])")
    before, after = (colors.findall(re.sub(r"data:[^\"']*", "", svg)) for svg in (light, text))
    assert after[1:] == dark(*before), "the first is the one that all others inherit"
    assert {"#ececec", GROUND} <= set(after)
    assert not re.search(r"rgb\(|hsl\(|(?:fill|stroke)[:=] ?\"?(?!none|#|url)[a-z]", light)
    # Nothing else has changed.
    bare = [re.sub(r"data:[^\"']*|#[0-9a-f]{6}", "", svg) for svg in (light, text)]
    assert bare[1].replace(' fill=""', "", 1) == bare[0]


def pixels(data: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(data)).convert("RGBA"))


def test_a_png_is_turned_pixel_by_pixel(drawn):
    before, after = pixels(drawn["png"]), pixels(figures.dark_png(drawn["png"]))
    for y, x in ((0, 0), (before.shape[0] // 2, before.shape[1] // 2)):
        assert f"#{bytes(after[y, x, :3]).hex()}" == dark(f"#{bytes(before[y, x, :3]).hex()}")[0]
    file = io.BytesIO()
    Image.fromarray(np.array([[[255, 255, 255, 0], [0, 0, 0, 255]]], np.uint8)).save(file, "png")
    assert pixels(figures.dark_png(file.getvalue())).tolist() == [
        [[18, 18, 18, 0], [236, 236, 236, 255]]
    ]


def test_what_a_picture_says_of_itself(drawn):
    width, height, label = figures.facts(drawn["svg"])
    assert label == pytest.approx(8 * 4 / 3, abs=0.01)  # the legend's and the values'
    assert (width, height) == pytest.approx((5 * 96, 3 * 96), abs=20)  # cut close to what is drawn
    width, height, label = figures.facts(drawn["png"])
    assert label == pytest.approx(10 * 4 / 3)
    assert (width, height) == pytest.approx((5 * 96, 3 * 96), abs=20)
    file = io.BytesIO()
    Image.new("RGB", (300, 150)).save(file, "png", dpi=(150, 150))
    assert figures.facts(file.getvalue()) == pytest.approx((192, 96, 0), abs=0.1)
    assert figures.facts(b'<svg viewBox="0 0 1 1"/>') is None


# --- pages ----------------------------------------------------------------------------------


def test_every_figure_of_the_book_has_both_forms(built_book):
    count = 0
    for page in toc.toc_pages(ROOT):
        text = (built_book / f"{page}.html").read_text(encoding="utf8")
        for light, late in re.findall(
            r'only-light"[^>]*src="([^"]*)".*?only-dark"[^>]*src="([^"]*)"', text
        ):
            kind = Path(light).suffix
            assert late == light.removesuffix(kind) + "-dark" + kind
            made = (built_book / page).parent / late
            stored = ((built_book / page).parent / light).read_bytes()
            if kind == ".svg":
                assert made.read_text(encoding="utf8") == figures.dark_svg(stored.decode())
            assert figures.facts(stored)[1] > 50
            count += 1
    assert count > 70
