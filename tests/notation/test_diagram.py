"""Tensor networks: their nodes, edges and open legs; diagrams: that everything is drawn."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

from mha_book.notation import Equation
from mha_book.notation.diagram import network
from mha_book.notation.system import multi_head_layer


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    plt.close("all")  # what other files left open
    with plt.rc_context():
        yield
    assert plt.get_fignums() == []


def nodes(graph: Any, kind: str) -> list[str]:
    return [data["label"] for _, data in graph.nodes(data=True) if data["kind"] == kind]


@pytest.mark.parametrize(
    "latex, dots, boxes",
    [
        (r"t = A^{ii}", ["i"], []),  # both ends of one tensor
        (r"t^i = A^{ij}", ["j"], []),  # summed over alone
        (r"t = x^i y^i z^i", ["i"], []),
        (r"y^i = x^i + z^i", [], ["+"]),
        (r"y^i = \exp(x^i)", [], [r"\mathrm{exp}"]),
        (r"y^i = \left(x^i\right)^2", [], [r"(\cdot)^{2}"]),
        (r"y^i = \frac{x^i}{z^i}", [], [r"\div"]),
        (r"y^i = \delta^{ij} x^j", [], []),
        (r"y = 3", [], []),
    ],
)
def test_other_nodes(latex: str, dots: list[str], boxes: list[str]) -> None:
    equation = Equation(latex)
    graph = network([equation])
    assert nodes(graph, "dot") == dots
    assert nodes(graph, "box") == boxes
    assert sorted(nodes(graph, "open")) == sorted(equation.free)
    equation.diagram()


def test_a_diagram_shows_every_tensor_and_index() -> None:
    figure = multi_head_layer().diagram()
    (ax,) = figure.axes
    shown = Counter(text.get_text().strip("$") for text in ax.texts)
    assert shown["X"] == 3
    assert shown["h"] == 2
    assert {"W_Q", "W_K", "W_V", "W_O", "i", "j", "d", "a", "b", "c", "Y"} <= set(shown)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "summed over",
        "free",
        "into a box",
        "batch-like",
    ]
    assert max(figure.get_size_inches()) < 8
