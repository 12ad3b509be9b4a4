"""Three attentions of thirty lines, each with another bug: the command names it."""

import json

import pytest

from mha_book.conformance.__main__ import main

pytestmark = pytest.mark.needs_torch
MODULE = "tests.conformance.newcomers"


@pytest.mark.parametrize(
    ("name", "bug", "words"),
    [
        ("MixedHeads", "split-without-transpose", "heads are mixed: the split is a reshape"),
        ("WrongAxis", "softmax-over-queries", "the softmax runs over the queries"),
    ],
)
def test_the_command_names_the_bug(name, bug, words, capsys):
    assert main([f"{MODULE}:{name}", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["bugs"][0] == bug
    assert words in found["diagnosis"][0]


def test_the_one_without_a_bug_passes(capsys):
    assert main([f"{MODULE}:Right"]) == 0
    assert "passed in" in capsys.readouterr().out


def test_a_leak_is_found_from_outside(capsys):
    assert main([f"{MODULE}:Leaking", "--model"]) == 1
    assert "every position sees the whole future" in capsys.readouterr().out
