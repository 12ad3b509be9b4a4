"""The page of evidence: the source of every test that ``book/claims.yml`` names."""

from pathlib import Path

from docutils import nodes
from mha_book_claims import load, refer
from mha_book_ledger import evidence_anchor, evidence_source
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

__all__ = ["by_test", "repository_file", "setup"]

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


class Evidence(SphinxDirective):
    """``{claims-evidence}``: one section a test: what it decides, its name, its source."""

    def run(self):
        """Return the sections."""
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / "_config.yml"))  # names the repository, if any
        taken: dict[str, str] = {}
        out = []
        for test, claims in by_test(load(self.env)).items():
            self.env.note_dependency(str(root / test.split("::")[0]))
            source, anchor = evidence_source(root, test), evidence_anchor(test)
            if source and anchor not in taken:
                taken[anchor] = test
                out.append(self.section(test, claims, source))
                continue
            problem = f"has one anchor with {taken[anchor]}" if source else "does not exist"
            text = f"the test of {', '.join(claims)} {problem}: {test}"
            logger.warning(text, location=self.get_location(), type="mha_book")
        return out

    def section(self, test: str, claims: list[str], source: str) -> nodes.Node:
        """Render one test."""
        anchor, (file, _, name) = evidence_anchor(test), test.partition("::")
        self.env.get_domain("std").note_hyperlink_target(anchor, self.env.docname, anchor, name)
        section = nodes.section(ids=[anchor])
        title = f"{', '.join(claims)}: {name}"
        section += nodes.title(title, title)
        line = nodes.paragraph("", "Decides ", classes=["evidence-of"])
        for claim in claims:
            line += nodes.Text("" if claim == claims[0] else ", ")
            line += refer(f"ledger-{claim.lower()}", claim)
        path = nodes.literal(test, test)
        uri = repository_file(self.env.config.html_theme_options, file)
        line += [nodes.Text(": "), nodes.reference("", "", path, refuri=uri) if uri else path]
        section += [line, nodes.literal_block(source, source, language="python")]
        return section


def setup(app):
    """Register the directive."""
    app.add_directive("claims-evidence", Evidence)
