"""The exercises on attention on hardware: wrong answers with their hints."""

ANSWERS = [
    ("least-time", lambda f, m, p, w: f / p + m / w, "the times do not add"),
    ("intensity", lambda n, k, s, h, b: 2 / b, "serves 3 query heads"),
    ("whole", lambda share, gain: 1 - share + share / gain, "how many times as fast"),
]
