"""Finding one's way: figures and exercises listed, terms linked, equations shown where cited.

- ``{figure-list}`` and ``{exercise-list}``: every numbered figure and every exercise of the
  chapters, with links; an exercise has the anchor ``exercise-1`` beside that of its heading.
- Exercises are numbered as figures are: what a notebook calls exercise 2 is exercise 6.2 in the
  sixth chapter, and where prose names it, it is a link to it.
- The first time that a page's prose has a term of the glossary, it is a link to it.
- A cited equation, figure or work and a linked term are shown on hovering and on focus
  (``find.js``); what is on another page travels as a small table at the end of the page.
- The links to the previous and the next page say what is there.
- The search's index has prose alone: names in code are found by the API's own entries. A page can
  have words that readers look for though its title has others (``book/search.yml``).
- Above a chapter's first exercise stands where to run it.
"""

import json
import posixpath
import re
from pathlib import Path

from docutils import nodes
from mha_book_equations import add_directive
from mha_book_html import describe, template
from mha_book_questions import Form
from mha_book_teaching import minutes
from mha_book_toc import read, toc_pages
from sphinx import addnodes

EXERCISE = re.compile(r"Exercise (?:\d+\.)?(\d+)\b")
CLOSING = re.compile(r"Exercise|What to remember|What this does not show|References|Where next")
MENTION = re.compile(r"\b([Ee]xercise) (\d+)\b")
NOTES = "mha_book_notes"
GLOSSARY, SEARCH = "book/glossary", "book/search.yml"
LISTS = {name: f"book/{name}" for name in ("figures", "exercises", "questions")}
# Where a word is no prose: it has a link, is shown as it is written, or is the name of something.
CLOSED = (
    nodes.title, nodes.rubric, nodes.literal, nodes.literal_block, nodes.reference, nodes.math,
    nodes.math_block, nodes.raw, nodes.caption, nodes.table, nodes.target, nodes.image,
)  # fmt: skip


class page_list(nodes.General, nodes.Element):
    """Where the list of figures or of exercises will stand, once all pages are read."""


def page_list_here(self):
    """``{figure-list}`` and ``{exercise-list}``."""
    return [page_list(kind=f"{self.name.removesuffix('-list')}s")]


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    text = " ".join(text.split())
    end = re.search(r"(?<!\be\.g)(?<!\bi\.e)[.?!](?=\s+[A-Z0-9]|$)", text)
    return text[: end.end()] if end else text


def opening(text: str, length: int = 60) -> str:
    """Return as many sentences from the start of a text as it takes to say something."""
    said = first_sentence(text)
    while len(said) < min(length, len(text)):
        said += " " + first_sentence(text[len(said) :])
    return said.strip()


def _notes(env) -> dict[str, dict]:
    """Return page -> what it has that other pages speak of."""
    return {page: all_[NOTES] for page, all_ in env.metadata.items() if NOTES in all_}


def _plain(node: nodes.Node) -> str:
    """Return the text of a node, formulas as they stand in TeX between dollars."""
    copy = node.deepcopy()
    for formula in list(copy.findall(nodes.math)):
        formula.replace_self(nodes.Text(f"${formula.astext()}$"))
    return copy.astext()


def _read(app, doctree) -> None:
    """Note the figures, exercises, equations and terms of a page; give exercises their anchor."""
    env = app.env
    figures = {}
    for figure in doctree.findall(nodes.figure):
        caption = next(iter(figure.findall(nodes.caption)), None)
        if caption is not None and figure["ids"]:
            figures[figure["ids"][0]] = first_sentence(_plain(caption))
    exercises = {}
    for section in doctree.findall(nodes.section):
        title = section[0].astext()
        if found := EXERCISE.match(title):
            anchor = f"exercise-{found[1]}"
            section["ids"] = [*dict.fromkeys([*section["ids"], anchor])]
            cells = [c for c in section.findall(nodes.container) if "tag_solution" in c["classes"]]
            code = "".join(cell.astext() for cell in cells).partition("def solution():\n")[2]
            body = code.partition("\n    return ")[0].splitlines()[1:]
            count = sum(bool(line.strip()) for line in body)
            time = minutes(int(found[1]))
            exercises[anchor] = f"{title} ({time} minutes, {count} line{'s'[: count - 1]})"
    equations = {
        node["ids"][0]: node.astext().strip()
        for node in doctree.findall(nodes.math_block)
        if node["ids"] and node.get("label")
    }
    terms = {
        term["ids"][0]: first_sentence(_plain(item.children[-1]))
        for item in doctree.findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
        if env.docname == GLOSSARY and term["ids"]
    }
    env.metadata[env.docname][NOTES] = {
        "figures": figures, "exercises": exercises, "equations": equations, "terms": terms,
        "description": describe(doctree),
    }  # fmt: skip
    if words := read(Path(app.srcdir, SEARCH)).get(env.docname):
        env.note_dependency(str(Path(app.srcdir, SEARCH)))
        found = section_of([w for own in words.values() for w in own], doctree)
        entries = [("single", word, anchor, "main", None) for word, anchor in found.items()]
        doctree.insert(0, addnodes.index(entries=entries))


def _updated(app, env) -> list[str]:
    """Name the pages of lists, to be written again whatever has changed."""
    for page in LISTS.values():  # their formulas come after Sphinx asked which pages have some
        env.get_domain("math").data["has_equations"][page] = True
    for page in _notes(env):  # beside a page, its headings with their numbers
        for link in env.tocs[page].findall(nodes.reference):
            _number_exercise(link, _chapter(env, page))
    return sorted(env.found_docs.intersection(LISTS.values()))


def _chapter(env, page: str) -> str:
    """Return the number of a chapter, or nothing."""
    return ".".join(map(str, env.toc_secnumbers.get(page, {}).get("", ())))


def _numbered(text: str, chapter: str) -> str:
    """Return the name of an exercise with the number of its chapter."""
    return EXERCISE.sub(rf"Exercise {chapter}.\1" if chapter else r"Exercise \1", text, count=1)


def _number_exercise(title: nodes.Element, chapter: str) -> None:
    """Give the number of its chapter to an exercise in a heading, or in a link to one."""
    text = next(iter(title.findall(nodes.Text)), None)
    if text is not None and EXERCISE.match(text):
        text.parent.replace(text, nodes.Text(_numbered(text.astext(), chapter)))


def _link_exercises(doctree, chapter: str) -> None:
    """Number the exercises of a page, and make a link of each mention of one in its prose."""
    anchors = set()
    for section in doctree.findall(nodes.section):
        if found := EXERCISE.match(section[0].astext()):
            anchors.add(f"exercise-{found[1]}")
            _number_exercise(section[0], chapter)
    for text in list(doctree.findall(nodes.Text)):
        found = MENTION.search(text)
        if not found or not isinstance(text.parent, nodes.paragraph) or _is_closed(text):
            continue
        if (anchor := f"exercise-{found[2]}") in anchors:
            string, name = text.astext(), f"{found[1]} {chapter}{'.' if chapter else ''}{found[2]}"
            link = nodes.reference("", name, refuri=f"#{anchor}", internal=True)
            before, after = string[: found.start()], string[found.end() :]
            index = text.parent.index(text)
            text.parent[index : index + 1] = [nodes.Text(before), link, nodes.Text(after)]


def _is_closed(node: nodes.Node) -> bool:
    """Say whether a node stands where words are no prose."""
    while node.parent is not None and not isinstance(node.parent, CLOSED):
        node = node.parent
    return node.parent is not None


def _listing(app, docname: str, kind: str) -> nodes.Node:
    """Return a list for each page that has figures or exercises."""
    env, pages = app.env, []
    for page in toc_pages(Path(env.srcdir)):
        numbers, items = env.toc_fignumbers.get(page, {}).get("figure", {}), []
        for anchor, text in _notes(env).get(page, {}).get(kind, {}).items():
            label, _, rest = _numbered(text, _chapter(env, page)).partition(": ")
            if kind == "figures":
                label, rest = f"Fig. {'.'.join(map(str, numbers.get(anchor, ())))}", text
            if kind != "figures" or anchor in numbers:
                items.append((anchor, label, rest))
        uri, title = app.builder.get_relative_uri(docname, page), env.titles[page].astext()
        name = f"{kind}-{page.rpartition('/')[2]}"
        pages += [(name, uri, _chapter(env, page), title, items)] if items else []
    return Form(html=template("page-list.html").render(pages=pages))


def link_terms(doctree: nodes.document, terms: dict[str, str], uri: str) -> list[str]:
    """Make the first use of each term in a page's prose a link, and return their anchors.

    ``terms`` has them in lower case with their anchors; ``uri`` is the address of the glossary.
    """
    longest, done = "|".join(map(re.escape, sorted(terms, key=len, reverse=True))), []
    pattern = re.compile(rf"(?<![\w-])({longest})(s?)(?![\w-])", re.I)  # one or many
    for text in list(doctree.findall(nodes.Text)):
        if _is_closed(text) or not isinstance(text.parent, nodes.paragraph | nodes.emphasis):
            continue
        pieces: list[nodes.Node] = []
        string, place = text.astext(), 0
        for found in pattern.finditer(string):
            anchor = terms[found[1].lower()]
            if anchor in done:
                continue
            done.append(anchor)
            link = nodes.reference("", found[0], refuri=f"{uri}#{anchor}", internal=True)
            link["classes"] = ["term-link"]
            pieces += [nodes.Text(string[place : found.start()]), link]
            place = found.end()
        if pieces:
            parent, index = text.parent, text.parent.index(text)
            parent[index : index + 1] = [*pieces, nodes.Text(string[place:])]
    return done


def _say_where_to_run(app, doctree, docname: str) -> None:
    """Say above the first exercise of a notebook where its cells can be run."""
    sections = doctree.findall(nodes.section)
    first = next((s for s in sections if "exercise-1" in s["ids"]), None)
    if first is None:
        return
    name = posixpath.relpath(f"_sources/{docname}.ipynb", posixpath.dirname(docname))
    root = app.builder.get_relative_uri(docname, app.config.root_doc)
    text = template("where-to-run.html").render(notebook=name, root=root)
    line = nodes.raw("", text, format="html")
    first.parent.insert(first.parent.index(first), line)


def _resolved(app, doctree, docname) -> None:
    if app.builder.format != "html":
        return
    for node in list(doctree.findall(page_list)):
        node.replace_self(_listing(app, docname, node["kind"]))
    env, builder = app.env, app.builder
    _link_exercises(doctree, _chapter(env, docname))
    is_notebook = Path(env.doc2path(docname)).suffix == ".ipynb"
    objects = env.get_domain("std").objects.items()
    known = {name.lower(): at for (kind, name), (_, at) in objects if kind == "term"}
    if is_notebook and known:
        link_terms(doctree, known, builder.get_relative_uri(docname, GLOSSARY))
    tips = _tips(app, doctree, docname)
    if is_notebook:
        _say_where_to_run(app, doctree, docname)
    if tips:
        table = json.dumps(tips, sort_keys=True).replace("</", "<\\/")
        script = f'<script type="application/json" id="tips">{table}</script>'
        doctree += nodes.raw("", script, format="html")


def _tips(app, doctree, docname: str) -> dict[str, dict[str, str]]:
    """Return address as written -> what it leads to: equations, terms, figures of other pages."""
    cited, tips = {node.get("refuri") for node in doctree.findall(nodes.reference)}, {}
    for page, note in _notes(app.env).items():
        uri = app.builder.get_relative_uri(docname, page)
        for kind, name in (("equations", "tex"), ("terms", "text"), ("figures", "text")):
            for anchor, said in note[kind].items():
                if page != docname and (link := f"{uri}#{anchor}") in cited:
                    tips[link] = {name: said}
    return tips


def _page(app, pagename, templatename, context, doctree) -> None:
    """Say what is on the previous and on the next page."""
    _, *around = (app.builder.relations.get(pagename) or (None, None, None))[:3]
    for name, page in zip(("prev", "next"), around, strict=True):
        if context.get(name) and page in _notes(app.env):
            context[name]["sentence"] = opening(_notes(app.env)[page]["description"])


def _index_prose_alone(app) -> None:
    """Keep code, printed lines and TeX out of the index of the search."""
    if app.builder.format != "html":
        return
    plain = app.builder.index_page

    def index_page(pagename, doctree, title):
        kinds = nodes.literal_block | nodes.math | nodes.math_block
        hidden = [(n, n.children) for n in doctree.findall(lambda n: isinstance(n, kinds))]
        for node, _ in hidden:
            node.children = []
        plain(pagename, doctree, title)
        for node, children in hidden:
            node.children = children

    app.builder.index_page = index_page


def terms(root: Path) -> dict[str, list[str]]:
    """Return page -> the terms of the field that it defines, from ``book/search.yml``."""
    lists = read(root / SEARCH)
    return {page: words["terms"] for page, words in lists.items() if "terms" in words}


def section_of(words: list[str], doctree: nodes.document) -> dict[str, str]:
    """Return word -> anchor of the section with it in its heading, in bold or at all; else none."""
    places = []
    for kind in (nodes.title, nodes.strong, nodes.paragraph):
        for node in doctree.findall(kind):
            section = node.parent
            while not isinstance(section, nodes.section | nodes.document):
                section = section.parent
            is_top = not isinstance(section.parent, nodes.section)
            if is_top or not CLOSING.match(section[0].astext()):
                text = " ".join(node.astext().lower().split())
                places.append((text, "" if is_top else section["ids"][0]))
    parts = (word.partition(" = ") for word in words)
    asked = {name: (like or name).lower() for name, _, like in parts}
    return {
        name: next((place for text, place in places if word in text), "")
        for name, word in asked.items()
    }


def setup(app):
    """Register the directives, the events, the style and the script."""
    app.add_node(page_list)
    add_directive(app, "figure-list", page_list_here)
    add_directive(app, "exercise-list", page_list_here)
    app.add_js_file("find.js")
    app.connect("builder-inited", _index_prose_alone)
    app.connect("doctree-read", _read, priority=600)
    app.connect("env-get-updated", _updated, priority=600)
    app.connect("doctree-resolved", _resolved, priority=600)
    app.connect("html-page-context", _page, priority=950)
