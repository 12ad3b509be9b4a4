"""The exercises on what heads cost: wrong answers with their hints."""

ANSWERS = [
    ("parameters", lambda d, n, k, h: 4 * d * d, "4 D² holds for K = N"),
    ("balance", lambda d, n, k, h: 2 * d * (n + k) / n, "factor of 2"),
    ("longest", lambda m, n, k, h, b, s: m // (s * n * k * h * b), "a key and a value"),
    ("equal-parameters", lambda d, n, k: d / n, "leave the layer smaller"),
]
