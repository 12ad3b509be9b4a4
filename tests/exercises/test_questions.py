"""Every choice of every question is run: right answers hold, wrong ones do not."""

import ast
import copy
import json

import numpy as np
import pytest

from mha_book import costs
from mha_book.conformance.mutants import mutant
from mha_book.conformance.oracle import USUAL, Case, attend, softmax
from tests.book import gates
from tests.book.extensions import ROOT, pages, questions

BANK = questions.load(ROOT)
ALL = [(page, name) for page, found in BANK.items() for name in found]


def same(a, b) -> bool:
    """Whether two results agree, shapes included."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.kind in "USO":
        return a.shape == b.shape and bool((a == b).all())
    return bool(np.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True))


TOOLS = {
    "np": np, "costs": costs, "same": same, "Case": Case, "attend": attend,
    "softmax": lambda scores, axis=-1: softmax(np.asarray(scores, float), USUAL, axis),
    "wrong": lambda bug, case, *more: mutant(bug).attend(case, *more),
    "draw": lambda *shape: np.random.default_rng(shape).normal(size=shape),
    "stored": lambda name: json.loads((ROOT / "book/data" / f"{name}.json").read_text("utf8")),
}  # fmt: skip
"""What the questions compute with."""


def problems(question: dict) -> list[str]:
    """What is wrong with a question's key: a right choice that fails, a wrong one that holds."""
    scope = dict(TOOLS)
    exec(question.get("given", ""), scope)
    found = []
    for place, choice in enumerate(question["choices"]):
        said = result = eval(str(choice["run"]), scope)
        is_right = place == 0
        if "value" in question:
            said = same(result, eval(question["value"], scope))
        elif not any(isinstance(node, ast.Name) for node in ast.walk(ast.parse(choice["run"]))):
            found.append(f"computes nothing: {choice['run']}")
        if is_right:
            texts = [question.get("asks", ""), question.get("given", ""), str(choice["run"])]
            shown = [*pages.values_in([*texts, str(np.ravel(result).tolist())])]
            shown += [100 * number for number in shown]
            told = pages.values_in([choice["says"]])
            found += [f"nothing is {x}" for x in told if not np.isclose(x, shown, 0.01).any()]
        if not isinstance(said, bool | np.bool_) or bool(said) != is_right:
            found.append(f"{said}: {choice['says']}")
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("page", BANK)
def test_every_choice_is_what_the_key_says(page):
    assert {name: found for name, q in BANK[page].items() if (found := problems(q))} == {}


@pytest.mark.parametrize("page", BANK)
def test_another_key_is_noticed(page):
    """Each wrong choice in turn in the place of the right one."""
    for name, question in BANK[page].items():
        for place in range(1, len(question["choices"])):
            planted = copy.deepcopy(question)
            choices = planted["choices"]
            choices[0], choices[place] = choices[place], choices[0]
            assert len(problems(planted)) >= 2, (name, place)
        planted = copy.deepcopy(question)
        planted["choices"][0]["says"] += " 1234.5"
        assert len(problems(planted)) == 1, name


def test_the_bank_is_whole():
    assert set(BANK) == {page.removeprefix("book/") for page in gates.budgeted()} - {"recipes"}
    assert len(ALL) >= 90
    tests = {"before": [], "after": []}
    for page, found in BANK.items():
        assert sum("test" not in question for question in found.values()) >= 3, page
        for name, question in found.items():
            choices = question["choices"]
            assert 3 <= len(choices) <= 4, name
            assert len({choice["says"] for choice in choices}) == len(choices), name
            assert all(choice.keys() == {"says", "run", "why"} for choice in choices), name
            if "test" in question:
                tests[question["test"]].append((page, name.removesuffix("-again")))
    assert tests["before"] == tests["after"]
    assert len(tests["before"]) == 10
