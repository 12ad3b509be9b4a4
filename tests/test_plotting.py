"""The figures of attention: what they show, in which colours, and what they refuse."""

import base64
import io
import re
import warnings
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb
from PIL import Image

from mha_book.plotting import (
    PALETTE,
    WEIGHT_COLORS,
    attention_map,
    figure_data,
    head_atlas,
    head_grid,
    use_book_style,
)

TOKENS = ["[CLS]", "attention", "[SEP]"]
# (N, T, S) = (5, 2, 3), rows sum to 1
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 2))
QUERIES = ["who", "asks"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with plt.rc_context():
        yield
    plt.close("all")


def png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


# --- what is shown --------------------------------------------------------------------------


def test_a_map_shows_the_weights_queries_down_and_keys_across() -> None:
    ax = attention_map(WEIGHTS[0], QUERIES, TOKENS, title="one head")
    np.testing.assert_array_equal(ax.images[0].get_array(), WEIGHTS[0])
    assert [label.get_text() for label in ax.get_yticklabels()] == QUERIES
    assert [label.get_text() for label in ax.get_xticklabels()] == TOKENS
    assert ax.get_ylabel() == "query (attends)"
    assert ax.get_xlabel() == "key (attended to)"
    assert ax.get_title() == "one head"
    assert ax.yaxis_inverted()  # the first query is at the top
    assert ax.images[0].get_clim() == (0, 1)
    assert [other.get_ylabel() for other in ax.figure.axes if other is not ax] == [
        "attention weight"
    ]


def test_special_tokens_look_different_and_no_token_is_read_as_mathematics() -> None:
    ax = attention_map(np.eye(4), ["[CLS]", "$x_1$", "a b", "<|end|>"])
    labels = ax.get_yticklabels()
    assert [label.get_text() for label in labels] == ["[CLS]", "$x_1$", "a␣b", "<|end|>"]
    assert [label.get_fontstyle() == "italic" for label in labels] == [True, False, False, True]
    assert labels[0].get_color() != labels[1].get_color()
    assert not any(label.get_parse_math() for label in labels)
    long = attention_map(np.ones((1, 1)), ["x" * 40]).get_yticklabels()[0]
    assert long.get_text() == "x" * 15 + "…"


def test_a_grid_has_a_map_for_every_head_and_one_bar() -> None:
    figure = head_grid(WEIGHTS, QUERIES, TOKENS, columns=2)
    maps = [ax for ax in figure.axes if ax.images]
    assert [ax.get_title() for ax in maps] == [f"head {h}" for h in range(5)]
    for ax, weights in zip(maps, WEIGHTS, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), weights)
        assert ax.images[0].get_clim() == (0, 1)
    assert sum(ax.get_ylabel() == "attention weight" for ax in figure.axes) == 1
    # Labels at the left of each row and at the foot of each column, the short one included.
    assert [ax.get_ylabel() != "" for ax in maps] == [True, False, True, False, True]
    assert [ax.get_xlabel() != "" for ax in maps] == [False, False, False, True, True]
    for ax in maps:
        shown = [label.get_text() for label in ax.get_xticklabels()]
        assert shown == (TOKENS if ax.get_xlabel() else [""] * 3)


@pytest.mark.parametrize("heads, size", [(1, 1), (5, 2), (12, 13), (1, 40)])
def test_figures_fit_a_page_and_draw_without_a_warning(heads: int, size: int) -> None:
    use_book_style()
    weights = np.full((heads, size, size), 1 / size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = head_grid(weights, [f"tok{i}" for i in range(size)])
        png(figure)
        assert figure.get_figwidth() <= 8.01
        ax = attention_map(weights[0], [f"tok{i}" for i in range(size)])
        png(ax.figure)
        assert ax.figure.get_figwidth() <= 8.01


# --- style ----------------------------------------------------------------------------------


def test_two_runs_draw_the_same_picture() -> None:
    use_book_style()
    first = png(head_grid(WEIGHTS, QUERIES, TOKENS))
    assert png(head_grid(WEIGHTS, QUERIES, TOKENS)) == first
    assert b"tIME" not in first
    other = WEIGHTS.copy()
    other[3] = other[3][::-1]
    assert png(head_grid(other, QUERIES, TOKENS)) != first


def test_a_map_within_an_svg_has_a_palette_and_the_same_colors() -> None:
    use_book_style()
    weights = np.linspace(0, 1, 100).reshape(10, 10)
    svg = figure_data(attention_map(weights, list("abcdefghij"), colorbar=False).figure)
    (data,) = re.findall(r'data:image/png;base64,([^"]*)', svg["image/svg+xml"])
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    assert picture.mode == "P"
    shown = {tuple(color) for color in np.array(picture.convert("RGB")).reshape(-1, 3)}
    assert shown == {tuple(color) for color in WEIGHT_COLORS(weights.ravel(), bytes=True)[:, :3]}


# --- colours --------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes 2009, severity 1, for linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                        [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                        [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip


def linear(rgb: Any) -> np.ndarray:
    rgb = np.asarray(rgb, float)
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a: Any, b: Any) -> float:
    """The contrast ratio of WCAG 2."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(linear(a) @ weights), float(linear(b) @ weights)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Any, blindness: str = "none") -> np.ndarray:
    """CIE L*a*b* of sRGB colours as they are seen."""
    seen = np.clip(linear(rgb) @ BLINDNESS[blindness].T, 0, 1)
    xyz = seen @ TO_XYZ.T / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), -1)


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_greater_weights_look_darker_to_everyone(blindness: str) -> None:
    lightness = lab(WEIGHT_COLORS(np.linspace(0, 1, 33))[:, :3], blindness)[:, 0]
    steps = -np.diff(lightness)
    assert (steps > 0).all()
    assert lightness[0] - lightness[-1] > 70
    if blindness == "none":
        assert steps.max() < 1.25 * steps.min(), "equal steps of weight look unequal"


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_the_palette_can_be_told_apart_by_everyone(blindness: str) -> None:
    colors = lab([to_rgb(color) for color in PALETTE], blindness)
    distances = np.linalg.norm(colors[:, None] - colors[None], axis=-1)
    assert distances[np.triu_indices(len(PALETTE), 1)].min() > 10


# --- the atlas ------------------------------------------------------------------------------


def test_every_head_once_in_the_order_given():
    maps = np.arange(5)[:, None, None] * np.ones((5, 3, 3)) / 10
    figure = head_atlas(maps, list("abcde"), {"one": [4], "none": [], "two": [0, 2, 1]}, columns=2)
    ax = figure.axes[0]
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["one (1)", "two (3)", "e", "a", "c", "b"]
    image = ax.images[0].get_array()
    spots = {text.get_text(): text.get_position() for text in ax.texts}
    for name, value in zip("eacb", (0.4, 0.0, 0.2, 0.1), strict=True):
        x, y = spots[name]
        assert image[round((y - 0.5) * 3), int(x * 3)] == pytest.approx(value)
    plt.close(figure)
