"""The exercises on programs for accelerators: wrong answers with their hints."""

import math
import re


def largest(text, *, bits_of_pred=8):
    most = 0
    for kind, shape in re.findall(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]", text):
        bits = bits_of_pred if kind == "pred" else int(re.sub(r"\D", "", kind))
        most = max(most, bits // 8 * math.prod(int(n) for n in shape.split(",") if n))
    return most


def computed(heads, length, block, is_causal, *, diagonal=1):
    count = length // block
    return heads * (count * (count + diagonal) // 2 if is_causal else count**2)


def block(memory, width, size, *, step=128):
    found = 0
    while size * ((found + step) * 4 * width + (found + step) ** 2) <= memory:
        found += step
    return found


def rows(operations, moved, size, group):
    return math.ceil(operations / moved * size / 2 / group)


ANSWERS = [
    ("largest", lambda text: largest(text, bits_of_pred=32), "expected 4000 bytes; got 16000"),
    ("computed", lambda n, t, b, c: n * (t // b) ** 2, "are left out"),
    ("block", lambda *x: block(*x, step=1), "is no multiple of 128"),
    ("rows", lambda o, m, s, g: rows(o, m, s, 1), "are rows too"),
]
