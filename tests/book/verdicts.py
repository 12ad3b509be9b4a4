"""The verdict that a test's measured outcome bears, held against the ledger."""

import ast

from tests.book.extensions import ROOT, ledger

__all__ = ["decides", "verdict_problems", "waiting"]


def decides(claim: str, verdict: str) -> None:
    """Fail unless its ledger gives the claim this verdict: the last line of its evidence.

    It stands behind the assertions on what was measured, so that the verdict is reached only if
    they hold.
    """
    (file,) = (each.file for each in ledger.LEDGERS if claim.startswith(each.letter))
    entries = ledger.load_ledger(ROOT / file)
    (found,) = (entry["verdict"] for entry in entries if entry["id"] == claim)
    assert found == verdict, f"{claim}: the ledger says {found}, what was measured {verdict}"


def waiting(entry: dict) -> str:
    """Return the verdict of rows without evidence in the ledger that an entry is of."""
    (found,) = (each.waiting for each in ledger.LEDGERS if entry["id"].startswith(each.letter))
    return found


def verdict_problems(entries: list[dict]) -> list[str]:
    """Return where a verdict of the ledger is not the one that its test ends with.

    The tests are read and not run, so that this is quick; run, each of them makes the same
    comparison.
    """
    found = []
    for entry in entries:
        if entry["verdict"] == waiting(entry):
            continue
        source = ledger.evidence_source(ROOT, entry["test"])
        last = ast.unparse(ast.parse(source).body[0].body[-1]) if source else ""
        wanted = f"decides({entry['id']!r}, {entry['verdict']!r})"
        if last != wanted:
            found.append(f"{entry['id']}: its test does not end with {wanted} but with {last}")
    return found
