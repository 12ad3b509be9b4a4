"""The evidence for the claims of the chapter on index notation."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.notation import multi_head_layer
from mha_book.notation.diagram import network
from tests.book.verdicts import decides
from tests.notation.test_diagram import nodes


def test_c09_the_layer_as_a_network():
    layer = multi_head_layer()
    graph = network(layer.equations)
    assert sorted(nodes(graph, "tensor")) == ["W_K", "W_O", "W_Q", "W_V", "X", "X", "X"]
    assert len(nodes(graph, "box")) == 1  # the softmax, alone no contraction
    assert sorted(nodes(graph, "open")) == ["d", "i"]
    kinds = {(data["index"], data["kind"]) for *_, data in graph.edges(data=True)}
    assert {("h", "batch"), ("h", "summed")} <= kinds  # kept up to the weights, then summed
    contractions = [equation for equation in layer.equations if equation.einsums]
    assert [equation.left.name for equation in layer.equations if not equation.einsums] == ["A"]
    assert len(contractions) == 6

    # A network is linear in each of its tensors; the layer is so in two of its five.
    rng = np.random.default_rng(0)
    shapes = {"X": (3, 11), "W_Q": (5, 11, 2), "W_K": (5, 11, 2), "W_V": (5, 11, 7)}
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(rng.normal(size=s)) for name, s in shapes.items()}
        arrays["W_O"] = jnp.asarray(rng.normal(size=(5, 7, 11)))
        y = layer(**arrays)["Y"]
        linear = {
            name: np.allclose(layer(**{**arrays, name: 2 * arrays[name]})["Y"], 2 * y, rtol=1e-9)
            for name in arrays
        }
    assert linear == {"X": False, "W_Q": False, "W_K": False, "W_V": True, "W_O": True}
    decides("C09", "holds if", len(contractions) == 6, all(linear.values()))
