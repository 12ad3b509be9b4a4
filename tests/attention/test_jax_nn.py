"""cuDNN behind ``attend``: what reaches ``jax.nn``, with its XLA form in cuDNN's place.

The arithmetic is the contract suite's to check, on a GPU.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo  # where JAX asks which GPU is here

from mha_book import attend, causal, padding, sliding_window
from mha_book.attention.dispatch import AttentionSpec
from mha_book.attention.jax_nn import cudnn_attention, why_cudnn_unsupported
from mha_book.attention.operands import prepare
from mha_book.attention.platform import target_platform
from mha_book.masks import Mask

B, N, K, T, H = 2, 6, 2, 5, 16


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put ``jax.nn``'s XLA form where cuDNN would run; return what each call was given."""
    seen: list[dict[str, Any]] = []
    genuine = jax.nn.dot_product_attention

    def stand_in(query: Any, key: Any, value: Any, **given: Any) -> Any:
        shapes = [x.shape for x in (query, key, value)]
        seen.append({"shapes": shapes, "dtypes": {x.dtype.name for x in (query, key, value)}})
        seen[-1] |= given
        return genuine(query, key, value, **{**given, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    return seen


def operands(key_length: int, batch: tuple[int, ...] = (B,)) -> list[jax.Array]:
    rng = np.random.default_rng(7)
    shapes = ((*batch, N, T, H), (*batch, K, key_length, H), (*batch, K, key_length, H))
    return [jnp.asarray(rng.standard_normal(shape), "bfloat16") for shape in shapes]


@pytest.mark.parametrize(
    "batch, mask, key_length, scale",
    [
        ((), None, 3, 0.3),
        ((B,), causal(), 7, None),
        ((B, 3), causal(), 3, np.float32(0.3)),
        ((B,), sliding_window(3), 7, 0.3),
        ((), sliding_window(3), 3, None),
        ((B,), "lengths", 7, np.float32(0.3)),
        ((B, 3), "lengths", 5, None),
    ],
)
def test_it_is_given_what_it_takes(
    calls: list, batch: tuple, mask: Mask | None, key_length: int, scale: Any
) -> None:
    q, k, v = operands(key_length, batch)
    if mask == "lengths":
        lengths = jnp.resize(jnp.array([3, 0, 1]), batch)
        mask = padding(lengths, lengths + 1) & causal()
    scale = jnp.asarray(scale) if isinstance(scale, np.float32) else scale
    expected = attend(q, k, v, mask=mask, scale=scale, implementation="reference")
    if (
        mask is not None and mask.upper is not None and key_length > T
    ):  # hidden from every query: may hold anything
        k, v = (x.at[..., T:, :].set(jnp.nan) for x in (k, v))
    output, lse = cudnn_attention(prepare(q, k, v, mask=mask, scale=scale))
    assert lse is None
    np.testing.assert_allclose(
        output.astype("float32"), expected.astype("float32"), rtol=0, atol=2e-2
    )
    (call,) = calls
    assert call["implementation"] == "cudnn"
    assert call["is_causal"] == (mask is not None)
    assert "mask" not in call
    assert call["dtypes"] == {"bfloat16"}
    assert [len(shape) for shape in call["shapes"]] == [4, 4, 4]
    assert call["shapes"][0][1:] == (T + 1, N, H)  # an even number of positions
    assert isinstance(call["scale"], float)


SERVED = AttentionSpec(
    (B, N, T, 64), (B, K, T, 64), (B, K, T, 64), "bfloat16", platform="gpu",
    compute_capability=(9, 0),
)  # fmt: skip


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, None),
        ({"platform": "cpu"}, "needs an NVIDIA GPU"),
        ({"dtype": "float32"}, "half precision, not float32"),
        ({"value_shape": (B, K, T, 32)}, "no value width other"),
        ({"query_shape": (B, N, T, 60), "value_shape": (B, K, T, 60)}, "multiple of 8 up to 256"),
        ({"query_shape": (B, N, T, 192), "value_shape": (B, K, T, 192),
          "compute_capability": (8, 9)}, "up to 128, not 192"),
        ({"has_bias": True}, "slow with a bias"),
        ({"has_softcap": True}, "no soft cap"),
        ({"mask_kind": frozenset({"array"})}, "slow with a bias, segments or an array"),
    ],
)  # fmt: skip
def test_what_it_refuses(changes: dict[str, Any], reason: str | None) -> None:
    refused = why_cudnn_unsupported(SERVED._replace(**changes))
    assert refused is None if reason is None else reason in refused


def lowered_for_cuda(monkeypatch: pytest.MonkeyPatch, dtype: str, mask: Any) -> str:
    """The program of a forward and a backward pass for an NVIDIA GPU, as JAX hands it to XLA.

    JAX asks which GPU and which cuDNN are here while it traces; an A100 with cuDNN 9.10 answers.
    """
    answers = {
        "check_cudnn_version": lambda: 91000,
        "check_compute_capability": lambda capability: float(capability) <= 8.0,
        "is_cuda_compute_capability_equal": lambda capability: capability == "8.0",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(fused_attention_stablehlo, name, answer)
    query, key = (jax.ShapeDtypeStruct((2, n, LONG, 64), dtype) for n in (8, 2))
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)

    def both(q: Any, k: Any, v: Any, lengths: Any, d_output: Any) -> Any:
        output, pull = jax.vjp(lambda *x: attend(*x, mask=mask(lengths)), q, k, v)
        return output, pull(d_output)

    with target_platform("cuda", (8, 0)):
        traced = jax.jit(both).trace(query, key, key, lengths, query)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


LONG = 600


@pytest.mark.loose_promotion
@pytest.mark.parametrize(
    "mask, kind, dtype",
    [
        (lambda lengths: causal(), "CAUSAL", "bfloat16"),
        (lambda lengths: padding(lengths) & sliding_window(101), "PADDING_CAUSAL", "float16"),
        (lambda lengths: padding(lengths, lengths), "PADDING", "bfloat16"),
    ],
    ids=["causal", "lengths and a window", "lengths"],
)
def test_half_precision_ends_in_cudnn_on_a_gpu(
    mask: Any, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, with grouped heads, and no product that makes all scores."""
    program = lowered_for_cuda(monkeypatch, dtype, mask)
    calls = re.findall(r"custom_call @(__cudnn[$\w]+)", program)
    assert calls == ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]
    assert set(re.findall(r"mask_type\\22: \\22(\w+)\\22", program)) == {kind}
    assert scores_computed(program) == set()


def scores_computed(program: str) -> set[str]:
    """The operations that make an array of all pairs.

    What other platforms would keep for their backward passes stands there as arrays of one number,
    which XLA drops.
    """
    pairs = re.findall(
        rf"= (stablehlo\.\w+)[^\n]*tensor<(?:\d+x)*{LONG}x{LONG}x[a-z]\w*>\n", program
    )
    return set(pairs) - {"stablehlo.constant", "stablehlo.broadcast_in_dim"}
