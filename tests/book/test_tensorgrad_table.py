"""The table that compares with tensorgrad: our column holds, theirs is sourced."""

import json

import pytest

from tests.scripts.compare_tensorgrad import COMMAND, DESTINATION, PACKAGES
from tests.scripts.notation_tasks import GROUPS, OURS, TASKS, attempt

RENEW = "python -m tests.scripts.compare_tensorgrad --ours renews our column"


@pytest.fixture(scope="module")
def stored():
    return json.loads(DESTINATION.read_text())


@pytest.fixture(scope="module")
def rows(stored):
    return {row["task"]: row for row in stored["rows"]}


def test_every_task_has_a_row(stored, rows):
    assert list(rows) == list(TASKS) == [row["task"] for row in stored["rows"]]
    assert set(OURS) == set(TASKS)
    assert stored["groups"] == GROUPS
    assert {name: (row["group"], row["what"]) for name, row in rows.items()} == TASKS


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.loose_promotion
def test_our_column_holds(name, rows):
    assert attempt(OURS[name])._asdict() == rows[name]["mha_book"], RENEW


def test_no_task_of_ours_failed_by_a_mistake_of_the_script(rows):
    for name, row in rows.items():
        ours = row["mha_book"]
        assert not ours["detail"].startswith(("NameError", "TypeError", "Import", "ModuleNot")), (
            name
        )
        assert ours["does"] or ours["detail"], name


def test_their_column_is_sourced(rows):
    for name, row in rows.items():
        theirs = row["tensorgrad"]
        assert theirs["does"] in (True, False), name
        assert theirs["source"], name
        assert all(source.startswith("tensorgrad.") for source in theirs["source"]), name
        assert theirs["how"] if theirs["does"] else theirs["detail"], name


def test_the_provenance_names_versions_and_command(stored):
    provenance = stored["provenance"]
    assert provenance["tensorgrad"] == "0.3.0"
    assert provenance["command"] == COMMAND
    assert all(provenance[name] for name in (*PACKAGES, "date", "python", "note"))


def test_the_table_has_what_tensorgrad_does_and_we_do_not(rows):
    ahead = {
        n for n, row in rows.items() if row["tensorgrad"]["does"] and not row["mha_book"]["does"]
    }
    assert {"second", "expectation", "taylor"} <= ahead
