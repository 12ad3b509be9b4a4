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
    ("write", lambda: r"\bar A^{ij} = \frac{1}{N} \sum_h A^{hij}", "passed"),
    ("gradient", lambda: (QUERY, KEYS), "passed"),
    ("linear", lambda: 8 * 4096 * 64 * 64 * 4, "passed"),
    ("read", lambda: "hbB", "such as"),
    ("read", lambda: "hba,Bha->hbB", "the factors are"),
    ("read", lambda: "hba,hBa->hbBa", "a stands on the right alone"),
    ("read", lambda: "hba,hBa->bB", "indices of the left side"),
    ("read", lambda: "hba,hBa->hBb", "their order is not"),
    ("write", lambda: 3, "LaTeX as a string"),
    ("write", lambda: r"\bar A^{ji} = \frac{1}{N} A^{hij}", "expected the left side"),
    ("write", lambda: r"\bar A^{ij} = A^{hij}", "does not use N"),
    ("write", lambda: r"\bar A^{ij} = \frac{1}{N} A^{hij} B^{hij}", "uses B"),
    ("write", lambda: r"\bar A^{ij} = \frac{2}{N} A^{hij}", "other numbers"),
    ("write", lambda: r"\bar A^{ij} = \frac{1}{N} A^{hi}", "stands nowhere on the right"),
    ("gradient", lambda: QUERY, "two equations"),
    ("gradient", lambda: (KEYS, QUERY), "expected the left side"),
    ("gradient", lambda: (QUERY, KEYS.replace(r"\frac{1}{\sqrt{d_k}} ", "")), "does not use d_k"),
    ("linear", lambda: 8 * 4096 * 4096 * 64 * 4, "order that makes scores"),
    ("linear", lambda: 8 * 4096 * 64 * 64 * 2, "two operations"),
    ("linear", lambda: 1, "expected the flops"),
]
