"""The verdict that a test's measured outcome bears, held against the ledger."""

import ast
import builtins

from tests.book.extensions import ROOT, ledger

__all__ = ["decides", "verdict_problems", "waiting"]


def decides(claim: str, verdict: str, *found: bool) -> None:
    """Fail unless the ledger computes this verdict, and its parts are what was found.

    It is the last line of a claim's evidence, behind the assertions on what was measured.

    Args:
        claim: the id of the row.
        verdict: what the parts of the row have to bear.
        found: for each part ``yes`` or ``no`` of the row, whether it holds: an expression of what
            the test computed.
    """
    (file,) = (each.file for each in ledger.LEDGERS if claim.startswith(each.letter))
    (entry,) = (e for e in ledger.load_ledger(ROOT / file) if e["id"] == claim)
    assert [bool(each) for each in found] == _typed(entry), f"{claim}: {entry['judged']}"
    ours = entry["verdict"]
    assert ours == verdict, f"{claim}: the ledger says {ours}, what was measured {verdict}"


def _typed(entry: dict) -> list[bool]:
    return [part.holds for part in entry["judged"] if part.text in ("yes", "no")]


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
        last = ast.parse(source).body[0].body[-1] if source else ast.Pass()
        wanted, said = f"decides({entry['id']!r}, {entry['verdict']!r}", ast.unparse(last)
        if not said.startswith((f"{wanted})", f"{wanted}, ")):
            found.append(f"{entry['id']}: its test does not end with {wanted} but with {said}")
            continue
        parts = last.value.args[2:]
        if len(parts) != len(_typed(entry)) or not all(map(_is_computed, parts)):
            found.append(f"{entry['id']}: its test does not compute each part that is yes or no")
    return found


def _is_computed(part: ast.expr) -> bool:
    names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    return not names <= {*vars(builtins)}
