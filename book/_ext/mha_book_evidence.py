"""The page of evidence: the source of every test that a claim names, and what these share."""

import ast
from pathlib import Path

from docutils import nodes
from mha_book_claims import load, refer
from mha_book_equations import add_directive
from mha_book_ledger import evidence_anchor, evidence_source, places
from sphinx.util import logging

logger = logging.getLogger(__name__)


def by_test(entries: list[dict]) -> dict[str, list[str]]:
    """Return every test that a claim names, in the order of the claims -> ids of its claims."""
    tests: dict[str, list[str]] = {}
    for entry in entries:
        if entry["test"]:
            tests.setdefault(entry["test"].split("[")[0], []).append(entry["id"])
    return tests


def repository_file(options: dict, file: str) -> str:
    """Return the address of a file in the repository that the theme's options name, if any."""
    url = options.get("repository_url", "").rstrip("/")
    return f"{url}/blob/{options.get('repository_branch', 'main')}/{file}" if url else ""


def without_tests(text: str) -> str:
    """Return a file of tests without its tests: imports, constants, small functions, fixtures."""
    lines = text.splitlines()
    for name, (_, first, last) in reversed(places(text).items()):
        if name.startswith(("test_", "Test")) and "." not in name:
            while first > 1 and not lines[first - 2].strip():
                first -= 1
            del lines[first - 1 : last]
    return "\n".join(lines).strip() + "\n"


def shared_files(root: Path, entries: list[dict]) -> list[str]:
    """Return the files of the tests that claims name, and those below ``tests`` they import."""
    named = dict.fromkeys(test.partition("::")[0] for test in by_test(entries))
    files, imported = [file for file in named if (root / file).is_file()], []
    for file in files:
        for node in ast.parse((root / file).read_text(encoding="utf8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                module = node.module.replace(".", "/")
                imported += [f"{module}.py", *(f"{module}/{a.name}.py" for a in node.names)]
    return files + [file for file in dict.fromkeys(imported) if (root / file).is_file()]


def file_anchor(file: str) -> str:
    """Return where the page has what the tests of a file share."""
    return nodes.make_id(f"shared-{Path(file).with_suffix('')}")


def _section(self, file: str, anchor: str, name: str, title, lines, source: str) -> nodes.Node:
    """Return a section with an anchor that other pages know: its title, lines and code."""
    self.env.get_domain("std").note_hyperlink_target(anchor, self.env.docname, anchor, name)
    path = str(Path(self.env.srcdir) / file)
    code = nodes.literal_block(source, source, language="python", source=path)
    return nodes.section("", title, *lines, code, ids=[anchor])


def shared(self):
    """``{evidence-shared}``: one section a file: what its tests share."""
    root, out = Path(self.env.srcdir), []
    for file in shared_files(root, load(self.env)):
        self.env.note_dependency(str(root / file))
        source = without_tests((root / file).read_text(encoding="utf8"))
        title = nodes.title("", "", nodes.literal(file, file))
        out.append(_section(self, file, file_anchor(file), file, title, [], source))
    return out


def claims_evidence(self):
    """``{claims-evidence}``: one section a test: what it decides, its name, its source."""
    root = Path(self.env.srcdir)
    self.env.note_dependency(str(root / "_config.yml"))  # names the repository, if any
    taken: dict[str, str] = {}
    out = []
    for test, claims in by_test(load(self.env)).items():
        self.env.note_dependency(str(root / test.split("::")[0]))
        source, anchor = evidence_source(root, test), evidence_anchor(test)
        if source and anchor not in taken:
            taken[anchor] = test
            out.append(_of_test(self, test, claims, source))
            continue
        problem = f"has one anchor with {taken[anchor]}" if source else "does not exist"
        text = f"the test of {', '.join(claims)} {problem}: {test}"
        logger.warning(text, location=self.get_location(), type="mha_book")
    return out


def _of_test(self, test: str, claims: list[str], source: str) -> nodes.Node:
    """Render one test."""
    anchor, (file, _, name) = evidence_anchor(test), test.partition("::")
    title = f"{', '.join(claims)}: {name}"
    line = nodes.paragraph("", "Decides ", classes=["evidence-of"])
    for claim in claims:
        line += nodes.Text("" if claim == claims[0] else ", ")
        line += refer(f"ledger-{claim.lower()}", claim)
    path = nodes.literal(test, test)
    uri = repository_file(self.env.config.html_theme_options, file)
    line += [nodes.Text(": "), nodes.reference("", "", path, refuri=uri) if uri else path]
    line += [nodes.Text("; it uses what "), refer(file_anchor(file), "its file has for all")]
    return _section(self, file, anchor, name, nodes.title(title, title), [line], source)


def setup(app):
    """Register the directives."""
    add_directive(app, "claims-evidence", claims_evidence)
    add_directive(app, "evidence-shared", shared)
