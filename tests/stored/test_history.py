"""What a run found stays what it found: each stored number is compared with git's history.

Whoever forges a number seals it with a new digest, so that only a new run would tell; rows drawn by
chance find it in some commit, this in each. A run is known by its date. Its numbers never change;
those of a later run differ from all earlier ones by no more than rounding between machines makes,
times apart, or ``book/reruns.yml`` says why, which the page *status* shows.
"""

import copy
import functools
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from experiments.again import MEASURED, leaves
from tests.stored import files
from tests.stored.files import DATA, MANIFEST, OTHERS, RERUNS, RESULTS, TIMES, VERSIONS, result
from tests.turns import commit, git

WRITTEN = ("/command", "/payload_sha256")  # of the file as it is, not of the run


@functools.cache
def blobs(since: str) -> dict[str, list[str]]:
    """The contents that each stored file had from a commit on, newest first; without git, none."""
    found: dict[str, list[str]] = {}
    span = ["--ancestry-path", f"{since}..HEAD"] if since else ["HEAD"]
    how = ("-m", "--raw", "--no-renames", "--no-abbrev", "--format=")
    folders = [str(folder) for folder in (DATA, TIMES, VERSIONS)]
    told = [(line, 3) for line in git("log", *span, *how, "--", *folders).splitlines()]
    if since:
        told += [(line, 2) for line in git("ls-tree", "-r", since, "--", *folders).splitlines()]
    for line, place in told:
        described, path = line.split("\t")
        blob = described.split()[place]
        if blob.strip("0"):
            found.setdefault(path.rpartition("/")[2], []).append(blob)
    return found


def earlier(name: str) -> list[str]:
    since = RERUNS.get(name, {}).get("since", "")
    return [*dict.fromkeys(blobs(since).get(name, ()))]


def inside(document: dict[str, Any]) -> dict[str, Any]:
    return {place: x for place, x in leaves(document) if not place.startswith("/provenance")}


def is_near(told: Any, found: Any, place: str) -> bool:
    if any(word in place for word in MEASURED):
        return True
    if not (isinstance(told, float) and isinstance(found, float)):  # bytes and counts are exact
        return bool(told == found)
    return bool(np.isclose(told, found, rtol=1e-4, equal_nan=True))


def changes(now: dict[str, Any], before: Iterable[dict[str, Any]]) -> list[str]:
    """Where a file differs from what it was for the same run, or in an earlier one."""
    found, date = inside(now), now["provenance"]["date"]
    differ: list[str] = []
    for document in before:
        told = inside(document)
        if document.get("provenance", {}).get("date") != date:
            differ += [p for p in told if not is_near(told[p], found.get(p), p)]
        else:
            differ += [p for p in told | found if repr(told.get(p, p)) != repr(found.get(p, p))]
            where = dict(leaves(now["provenance"]))
            then = [(p, x) for p, x in leaves(document["provenance"]) if p not in WRITTEN]
            differ += [p for p, x in then if x is not None and x != where.get(p, x)]
    return differ


@pytest.mark.parametrize("name", RERUNS)
def test_a_file_stays_as_it_is_since_a_commit_of_the_past(name):
    since = RERUNS[name]["since"]
    assert re.fullmatch("[0-9a-f]{7,40}", since), "a commit by its hash, not by another name"
    if now := commit():
        assert git("merge-base", since, "HEAD").startswith(since)
        assert not now.startswith(since), "changed and excused by one commit"
        assert earlier(name)


@pytest.mark.parametrize("name", [path.name for path in (*RESULTS, VERSIONS)])
def test_what_a_run_found_stays_what_it_found(name):
    history = [json.loads(git("cat-file", "blob", blob)) for blob in earlier(name)]
    assert changes(result(name), history)[:9] == []


# Measurements that the book has no more, and one that another file has.
GONE = {
    "attention-grouped-cpu.json", "attention-one-core-cpu.json",
    "attention-one-core-newest-cpu.json", "gradients-cpu.json", "later-senders.json",
    "layer-cpu.json", "notation-cpu.json", "overhead-cpu.json", "parts-cpu.json",
    "precision-cpu.json", "ring-memory.json", "step-cpu.json",
}  # fmt: skip


def test_no_stored_file_is_gone():
    here = {path.name for path in (*RESULTS, *OTHERS, VERSIONS)} | {MANIFEST.name}
    assert not commit() or {*blobs("")} - here == GONE


# Commits of clones that are no more.
LOST = {"f501884", "9de004a", "c69fcea", "94b39aa", "820eae3", "bc07edb", "2af1d0d"}


def test_commits_that_are_named_exist():
    texts = [path.read_text(encoding="utf8") for path in (*RESULTS, VERSIONS, MANIFEST)]
    named = {*re.findall(r'"(?:commit|added_in)": "([0-9a-f]{40})"', "".join(texts))}
    lost = named - {*git("rev-list", "HEAD").split()}
    assert not commit() or {name[:7] for name in lost} == LOST


def test_arrays_stay_those_of_their_run():
    """Those of the explorer are held by their digests in its file."""
    for path in OTHERS if commit() else ():  # as elsewhere, none without git
        known = earlier(path.name)
        assert {git("hash-object", str(path)).strip(), *known} <= {*known[:1]}, path.name


@pytest.mark.parametrize("is_new_run", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        "smollm2/whole/0/3", "smollm2/together/alone/6/7", "smollm2", "minilm/seconds/ablation",
        "provenance/device", "provenance/seeds",
    ],
)  # fmt: skip
def test_a_forged_number_is_found(place, is_new_run):
    told, now = result("pruning.json"), copy.deepcopy(result("pruning.json"))
    files.scaled(now, place, 1.2) if "/" in place else now.update(by_another_name=now.pop(place))
    if is_new_run:
        now["provenance"]["date"] = "2030-01-01"
    between = copy.deepcopy(now)  # committed before, which changed the date alone
    between["provenance"]["date"] = "2029-01-01"
    for history in ([told], [between, told]):
        is_free = is_new_run and any(x in place for x in MEASURED)
        assert bool(changes(now, history)) != is_free
