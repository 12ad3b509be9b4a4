"""The exercises on attention on hardware: right answers, wrong ones with hints."""

ANSWERS = [
    ("least-time", lambda f, m, p, w: max(f / p, m / w), "passed"),
    ("least-time", lambda f, m, p, w: f / p + m / w, "the times do not add"),
    ("least-time", lambda f, m, p, w: min(f / p, m / w), "when the slower of the two is"),
    ("least-time", lambda f, m, p, w: f / w, "expected 0.008 s; got 0.08"),
    ("least-time", lambda *x: None, "expected a number; got NoneType"),
    ("intensity", lambda n, k, s, h, b: 2 * n / (k * b), "passed"),
    ("intensity", lambda n, k, s, h, b: 2 / b, "serves 3 query heads"),
    ("intensity", lambda n, k, s, h, b: n / (k * b), "two operations"),
    ("intensity", lambda n, k, s, h, b: 4 * n / (k * b), "values are read as well"),
    ("intensity", lambda n, k, s, h, b: 2 * n / k, "a number has 4 bytes"),
    ("intensity", lambda *x: 0.1, "expected 1.500; got 0.100"),
    ("intensity", lambda *x: "2G/b", "expected a number; got str"),
    ("whole", lambda share, gain: 1 / (1 - share + share / gain), "passed"),
    ("whole", lambda share, gain: 1 - share + share / gain, "how many times as fast"),
    ("whole", lambda share, gain: 1 - share + share * gain, "speeds do not"),
    ("whole", lambda share, gain: 7.0, "expected 1.600; got 7.000"),
    ("whole", lambda *x: (1, 2), "expected a number; got tuple"),
]
