"""Names of the package in code are links to the API, and the API names the chapters that use them.

The code of a page is parsed: what its cells import from ``mha_book`` is known in the cells below,
and code that is included from a file knows what that file imports and defines. Where a name stands
is exact, so that a variable of the same name in a function is no link. Of several links on a page
to one name the first is a stop of the Tab key.
"""

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from mha_book_api import FOLDER, PACKAGE, page_name, resolve
from mha_book_modules import ROOT
from mha_book_toc import toc_pages
from sphinx import addnodes

USES = "mha_book_uses"  # of a page: what its code uses -> the anchor where it first does
LANGUAGES = ("python", "ipython3", "ipython", "py")


class Use(NamedTuple):
    """A place in code that names something of the package."""

    start: int  # the first character, counted in the code
    end: int  # the one after the last
    name: str  # what it names, where the API documents it
    imported: bool  # whether this is an import, or what defines the name


class _Finder(ast.NodeVisitor):
    """Walks through code and notes what names something of the package."""

    def __init__(self, source: str, known: dict[str, str]) -> None:
        self.known, self.found = known, []
        self.lines = source.splitlines(keepends=True)
        self.starts = [0, *itertools.accumulate(map(len, self.lines))]

    def _offset(self, line: int, column: int) -> int:
        """Return the place of a character; the parser counts bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def _note(self, node: Any, path: str, text: str = "", *, skip: int = 0) -> bool:
        """Note a use, or, with its text, an import or the line that defines a name."""
        if not (name := resolve(path)):
            return False
        start = self._offset(node.lineno, node.col_offset + skip)
        end = start + len(text) if text else self._offset(node.end_lineno, node.end_col_offset)
        self.found.append(Use(start, end, name, bool(text)))
        return True

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self.known.pop(alias.asname or top, None)
            if top == PACKAGE:
                self.known[alias.asname or top] = alias.name if alias.asname else top
                self._note(alias, alias.name, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        inside = module.partition(".")[0] == PACKAGE and not node.level
        if inside:
            self._note(node, module, module, skip=len("from "))
        for alias in node.names:
            self.known.pop(alias.asname or alias.name, None)
            if inside:
                path = self.known[alias.asname or alias.name] = f"{module}.{alias.name}"
                self._note(alias, path, alias.name)

    def visit_Name(self, node: ast.Name) -> None:
        """A name alone: a use, or another meaning from here on."""
        if not isinstance(node.ctx, ast.Load):
            self.known.pop(node.id, None)
        elif node.id in self.known:
            self._note(node, self.known[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """``masks.causal``: the longest part of it that the API has."""
        path = ast.unparse(node)
        top, _, rest = path.partition(".")
        dotted = top in self.known and path.replace(".", "").isidentifier()
        if not (dotted and self._note(node, f"{self.known[top]}.{rest}")):
            self.visit(node.value)

    def _scope(self, node: Any) -> None:
        """A scope of its own, where what it binds means something else."""
        name = getattr(node, "name", "")
        if self.known.get(name, "").endswith(f".{name}"):
            skip = len("class " if isinstance(node, ast.ClassDef) else "def ")
            self._note(node, self.known[name], name, skip=skip)
        inside, outside = [*ast.walk(node)], self.known
        hidden = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        hidden |= {n.arg for n in inside if isinstance(n, ast.arg)}
        self.known = {bound: path for bound, path in outside.items() if bound not in hidden}
        self.generic_visit(node)
        self.known = outside

    visit_FunctionDef = visit_Lambda = visit_ClassDef = _scope
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _scope

    def visit_Assign(self, node: ast.Assign) -> None:
        """The value before the names, which it may still use."""
        for part in (node.value, *node.targets):
            self.visit(part)


def find_uses(source: str, known: dict[str, str]) -> list[Use]:
    """Return what names something of the package in a piece of code, in order.

    ``known`` has the dotted paths of what was imported before; imports of the code are added. What
    does not parse has no uses.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    finder = _Finder(source, known)
    finder.visit(tree)
    return sorted(set(finder.found))


def file_names(path: Path, root: Path = ROOT) -> dict[str, str]:
    """Return the names that a file imports from the package, or defines as a part of it."""
    known: dict[str, str] = {}
    text = path.read_text(encoding="utf8")
    tree = ast.parse(text)
    finder = _Finder(text, known)
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            finder.visit(node)
    if path.is_relative_to(root / "src"):
        module = ".".join(path.relative_to(root / "src").with_suffix("").parts)
        own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        known |= {name: f"{module.removesuffix('.__init__')}.{name}" for name in own}
    return known


_PIECE = re.compile(r"(<span[^>]*>[^<]*</span>)")


def linked(
    highlighted: str, uses: list[Use], links: Mapping[str, str], seen: Collection[str] = ()
) -> str:
    """Return code with links, as Pygments writes it: one level of spans in a ``pre``.

    A name without an address in ``links`` is no link; at one that was ``seen`` above the Tab key
    does not stop again.
    """
    head, opening, rest = highlighted.partition("<pre>")
    body, closing, tail = rest.rpartition("</pre>")
    starts = {use.start: use for use in uses if use.name in links}
    out, place, end = [], 0, None
    seen = set(seen)
    for piece in _PIECE.split(body):
        text = unescape(re.sub(r"<[^>]*>", "", piece))
        if text and end is None and place in starts:
            use = starts[place]
            end = use.end
            stop = ' tabindex="-1"' if use.name in seen else ""
            seen.add(use.name)
            href = escape(links[use.name])
            out.append(f'<a class="code-link" href="{href}" title="{use.name}"{stop}>')
        out.append(piece)
        place += len(text)
        if end is not None and place >= end:
            if place > end:
                return highlighted  # the link would end inside a piece
            out.append("</a>")
            end = None
    return "".join([head, opening, *out, closing, tail])


def _code_blocks(doctree: nodes.document) -> Iterator[nodes.literal_block]:
    for node in doctree.findall(nodes.literal_block):
        if node.get("language") in LANGUAGES and node.rawsource == node.astext():
            yield node


def _place(node: nodes.Node) -> tuple[str, bool]:
    """Return the anchor of a piece of code, its cell or its section, and whether it is folded."""
    while node.parent is not None:
        if isinstance(node, nodes.section):
            return str(node["ids"][0]), False
        if isinstance(node, nodes.container) and node.get("nb_element") == "cell_code":
            before = node.parent[max(node.parent.index(node) - 1, 0)]
            if isinstance(before, nodes.target) and before["ids"]:
                return str(before["ids"][0]), bool(node.get("folded"))
        node = node.parent
    return "", False


def _read(app, doctree) -> None:
    """Note what the code of a page uses, in the page and in the environment."""
    env, known = app.env, dict[str, str]()
    used: dict[str, tuple[bool, bool, str]] = {}
    for node in _code_blocks(doctree):
        file = Path(node.get("source") or "")
        included = file.is_absolute() and file.suffix == ".py" and file.is_file()
        uses = find_uses(node.astext(), file_names(file) if included else known)
        node["mha_book_uses"] = [tuple(use) for use in uses]
        anchor, folded = _place(node)
        for use in uses:
            here = (use.imported, folded, anchor)
            if use.name not in used or here[:2] < used[use.name][:2]:
                used[use.name] = here
    if Path(env.doc2path(env.docname)).suffix == ".ipynb":
        env.metadata[env.docname][USES] = {name: anchor for name, (*_, anchor) in used.items()}


def _users(env) -> dict[str, list[tuple[str, str]]]:
    """Return name -> the chapters that use it, in the book's order, with the anchors."""
    users: dict[str, list[tuple[str, str]]] = {}
    for page in toc_pages(Path(env.srcdir)):
        for name, anchor in env.metadata[page].get(USES, {}).items():
            users.setdefault(name, []).append((page, anchor))
    return users


def _updated(app, env) -> list[str]:
    """Name the pages of the API whose list of chapters has changed since the last build."""
    users, before = _users(env), getattr(env, "mha_book_users", {})
    env.mha_book_users = users
    changed = (name for name in {*users, *before} if users.get(name) != before.get(name))
    return sorted({page_name(name.rpartition(".")[0]) for name in changed} & env.found_docs)


def _resolved(app, doctree, docname) -> None:
    """Say on a page of the API which chapters use a name; find the addresses of the links."""
    if docname.startswith(f"{FOLDER}/"):
        users = app.env.mha_book_users
        for signature in list(doctree.findall(addnodes.desc_signature)):
            names = [name for name in signature["ids"] if name in users]
            content = signature.parent.children[-1]
            if names and isinstance(content, addnodes.desc_content):
                content += _used_in(app, docname, users[names[0]])
    objects = app.env.get_domain("py").objects
    seen: set[str] = set()
    for node in _code_blocks(doctree):
        links = {}
        for use in map(Use._make, node["mha_book_uses"]):
            target = objects.get(use.name)
            if target and target.docname != docname:
                uri = app.builder.get_relative_uri(docname, target.docname)
                links[use.name] = f"{uri}#{target.node_id}"
        node["mha_book_links"] = links, sorted(seen)
        seen.update(links)


def _used_in(app, docname: str, users: list[tuple[str, str]]) -> nodes.Node:
    line = nodes.paragraph("", "Used in ", classes=["used-in"])
    for page, anchor in users:
        line += nodes.Text(", ") if len(line) > 1 else []
        uri = app.builder.get_relative_uri(docname, page) + (f"#{anchor}" if anchor else "")
        title = app.env.titles[page].astext()
        line += nodes.reference("", title, refuri=uri, internal=True)
    return line


def _highlight(app) -> None:
    """Let the highlighter put in the links of the block that it is asked about."""
    if app.builder.format != "html":
        return
    plain = app.builder.highlighter.highlight_block

    def highlight_block(source, lang, *arguments, location=None, **options):
        html = plain(source, lang, *arguments, location=location, **options)
        if isinstance(location, nodes.literal_block) and "mha_book_links" in location:
            uses = [Use(*use) for use in location["mha_book_uses"]]
            return linked(html, uses, *location["mha_book_links"])
        return html

    app.builder.highlighter.highlight_block = highlight_block


def setup(app):
    """Register the events."""
    app.connect("builder-inited", _highlight)
    app.connect("doctree-read", _read, priority=600)  # the anchors of the cells are there
    app.connect("env-updated", _updated)
    app.connect("doctree-resolved", _resolved)
