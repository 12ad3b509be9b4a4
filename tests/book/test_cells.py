"""What the text of a page does without is in one fold at its end, and each piece has a link."""

import ast
import re

from tests.book import gates

FOLDS_AT_MOST = 60  # in the whole book


def test_the_book_has_few_folds_and_no_page_says_that_nobody_tried(built_book):
    folds = 0
    for path in built_book.rglob("*.html"):
        text = path.read_text(encoding="utf8")
        # The page of proofs has one fold for each proof, questions one for their answers.
        if "<article" in text and "_modules" not in path.parts and path.stem != "proofs":
            page = text[text.index("<article") :]
            page = re.sub(
                r'<form class="question".*?</form>|<details class="questions"', "", page, flags=re.S
            )
            folds += len(re.findall(r'<details(?! id="claim-)|class="[^"]*\bdropdown\b', page))
            assert "not attempted" not in text, path.name
    assert len(gates.chapters()) <= folds <= FOLDS_AT_MOST


def test_every_folded_cell_is_in_the_fold_and_a_link_leads_to_it(built_book):
    count = 0
    for path in gates.chapters():
        text = (built_book / "book" / f"{path.stem}.html").read_text(encoding="utf8")
        shown, _, fold = text.partition('<details class="page-code"')
        for cell in gates.load(path).cells:
            if not {"hide-input", "hide-cell"} & {*gates.tags(cell)}:
                continue
            has_output = f'id="code-{cell.id}"' in fold
            assert has_output != (f'id="cell-{cell.id}"' in fold), (path.stem, cell.id)
            assert f'id="cell-{cell.id}"' in (shown if has_output else fold)
            if has_output or "solution" in gates.tags(cell):
                anchor = f"{'code' if has_output else 'cell'}-{cell.id}"
                assert shown.count(f'href="#{anchor}"') == 1, (path.stem, anchor)
            if has_output or "hide-cell" not in gates.tags(cell):
                printed = gates.printed(cell).strip()
                assert has_output >= bool(printed), (path.stem, cell.id)
            count += 1
    assert count > 300


def test_a_table_is_shown_where_it_is_made():
    """Jupyter shows the value of a cell's last line alone: a table before it is lost."""
    for path in gates.chapters():
        for cell in gates.load(path).cells:
            if cell.cell_type == "code" and "table(" in cell.source:
                lost = [line for line in ast.parse(cell.source).body[:-1] if is_table(line)]
                assert not lost, (path.stem, cell.id)


def is_table(line):
    call = line.value if isinstance(line, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") == "table"
