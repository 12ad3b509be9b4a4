"""The exercises on index notation: right answers, wrong ones with hints."""

QUERY = (
    r"\frac{\partial L}{\partial W_Q^{hba}} = W_K^{hb'a} \frac{\partial L}{\partial \Gamma^{hbb'}}"
)
KEYS = (
    r"\frac{\partial L}{\partial K^{kja}} = "
    r"\frac{1}{\sqrt{d_k}} Q^{kgia} \frac{\partial L}{\partial S^{kgij}}"
)


ANSWERS = [
    ("read", lambda: "hba,hBa->hbB", "passed"),
    ("read", lambda: "hbB", "such as"),
    ("write", lambda: r"\bar A^{ij} = \frac{1}{N} \sum_h A^{hij}", "passed"),
    ("write", lambda: 3, "LaTeX as a string"),
    ("gradient", lambda: (QUERY, KEYS), "passed"),
    ("gradient", lambda: QUERY, "two equations"),
    ("linear", lambda: 8 * 4096 * 64 * 64 * 4, "passed"),
    ("linear", lambda: 8 * 4096 * 4096 * 64 * 4, "order that makes scores"),
]
