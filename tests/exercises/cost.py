"""The exercises on what heads cost: right answers, wrong ones with hints."""

ANSWERS = [
    ("parameters", lambda d, n, k, h: 2 * d * h * (n + k), "passed"),
    ("parameters", lambda d, n, k, h: 4 * d * d, "4 D² holds for K = N"),
    ("balance", lambda d, n, k, h: d * (n + k) / n, "passed"),
    ("balance", lambda d, n, k, h: 2 * d * (n + k) / n, "factor of 2"),
    ("longest", lambda m, n, k, h, b, s: m // (s * n * 2 * k * h * b), "passed"),
    ("longest", lambda m, n, k, h, b, s: m // (s * n * k * h * b), "a key and a value"),
    ("equal-parameters", lambda d, n, k: 2 * d / (n + k), "passed"),
    ("equal-parameters", lambda d, n, k: d / n, "leave the layer smaller"),
]
