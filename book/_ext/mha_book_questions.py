"""Questions to check oneself: in one fold of a chapter, and as tests before and after Part I.

``book/questions/<page>.yml`` has them by name: what is asked, the choices (the right one first;
pages shuffle them), why each is right or wrong, and what a test runs to show it. A question of a
test (``test: before`` or ``after``) is on the page that has ``{questions-before}`` alone.
"""

import html
import re
import zlib
from functools import partialmethod
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from mha_book_equations import add_directive
from mha_book_html import template
from mha_book_toc import read, toc_pages

_INLINE = re.compile(r"\$([^$]+)\$|`([^`]+)`|\*([^*]+)\*")
_MATH = r'<span class="math notranslate nohighlight">\({}\)</span>'


class Form(nodes.Element):
    """HTML that the search leaves out, for which formulas would be words."""


def _write(self, node: Form) -> None:
    self.body.append(node["html"])
    raise nodes.SkipNode


def load(root: Path) -> dict[str, dict[str, dict]]:
    """Return page -> name -> question, in the order of the book."""
    paths = (root / "book" / "questions" / f"{Path(page).name}.yml" for page in toc_pages(root))
    return {path.stem: read(path) for path in paths if path.exists()}


def inline(text: str) -> str:
    """Return a line of text as HTML, with its formulas, code and emphasis."""
    kinds = (_MATH, "<code>{}</code>", "<em>{}</em>")
    text = html.escape(text, quote=False).replace("'", "’")
    return _INLINE.sub(lambda m: kinds[m.lastindex - 1].format(m[m.lastindex]), text)


def spoken(text: str) -> str:
    """Return a line of text as a label, from which browsers leave typeset formulas out."""
    plain = re.sub(
        r"[$`*{}]|\\text|\\(?=[a-z])", "", text.replace(r"\sqrt", "√").replace(r"\,", " ")
    )
    return html.escape(plain)


def shown(env, bank: dict[str, dict[str, dict]], test: str | None = None) -> Form:
    """Return the questions of a test, or those of no test, as forms; scripts do the rest."""
    env.metadata[env.docname]["questions"] = True
    found = [
        (f"{page}-{name}", question, [*enumerate(question["choices"])])
        for page, questions in bank.items()
        for name, question in questions.items()
        if question.get("test") == test
    ]
    for name, _, choices in found:
        choices.sort(key=lambda pair: zlib.crc32(f"{name} {pair[1]['says']}".encode()))
    how = {"fold": test is None, "inline": inline, "spoken": spoken}
    return Form(html=template("questions.html").render(found=found, **how))


def _read(app, doctree) -> None:
    """Put a chapter's questions after what to remember and where to go next."""
    env, page = app.env, Path(app.srcdir, app.env.docname)
    if (path := page.parent / "questions" / f"{page.name}.yml").exists():
        env.note_dependency(str(path))
        sections = doctree.findall(nodes.section)
        last = next(s for s in sections if {"what-to-remember", "summary"} & {*s["ids"]})
        place = next((i for i, x in enumerate(last) if isinstance(x, nodes.section)), len(last))
        last.insert(place, shown(env, {page.name: read(path)}))


def test_here(self, test: str):
    """``{questions-before}`` and ``{questions-after}``: the tests of Part I."""
    return [shown(self.env, load(Path(self.env.srcdir)), test)]


def list_here(self):
    """``{question-list}``: what the chapters ask, with links."""
    self.env.note_reread()
    box, link = nodes.container(), '<li><a href="{0}.html#{0}-{1}">{2}</a></li>'
    for page, questions in load(Path(self.env.srcdir)).items():
        self.state.nested_parse(StringList([f"{{doc}}`{page}`"], "questions"), 0, box)
        asked = ((name, q["asks"]) for name, q in questions.items() if "test" not in q)
        rows = "".join(link.format(page, name, inline(text)) for name, text in asked)
        box += Form(html=f"<ul>{rows}</ul>")
    return [box]


def _load(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    if app.env.metadata.get(pagename, {}).get("questions"):
        app.add_js_file("questions.js")


def setup(app):
    """Register the directives and the events."""
    add_directive(app, "question-list", list_here)
    for test in ("before", "after"):
        add_directive(app, f"questions-{test}", partialmethod(test_here, test=test))
    app.add_node(Form, html=(_write, None))
    app.connect("doctree-read", _read)
    app.connect("html-page-context", _load)
