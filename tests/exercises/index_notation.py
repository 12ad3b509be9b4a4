"""The exercises on index notation: wrong answers with their hints."""

QUERY = (
    r"\frac{\partial L}{\partial W_Q^{hba}} = W_K^{hb'a} \frac{\partial L}{\partial \Gamma^{hbb'}}"
)
ANSWERS = [
    ("read", lambda: "hbB", "such as"),
    ("write", lambda: 3, "LaTeX as a string"),
    ("gradient", lambda: QUERY, "two equations"),
    ("linear", lambda: 8 * 4096 * 4096 * 64 * 4, "order that makes scores"),
]
