"""What the built pages have beyond their text: a head, what search engines read, how to cite.

The head lets a page be seen at once and in its colors: the theme is resolved before anything is
drawn, no script holds the page up, MathJax is there where there is a formula, and of the icons'
fonts and the theme's style sheets what the book uses.
"""

import html
import posixpath
import re
import textwrap
from pathlib import Path

from docutils import nodes
from fontTools.subset import Subsetter
from fontTools.ttLib import TTFont
from jinja2 import Environment, FileSystemLoader, Template
from mha_book_toc import read, toc_pages
from sphinx.addnodes import pending_xref

TEMPLATES = Path(__file__).parents[1] / "_templates"
DESCRIPTION_LENGTH = 200  # characters
_NAMES = re.compile(r'(?:class|id)="([^"]*)')
SHEETS = "basic styles/pydata* styles/sphinx* togglebutton copybutton mystnb* sphinx-d*"
_SIGNS = {"sqrt": "√", "times": "×", "cdot": "·", "le": "≤", "ge": "≥", "approx": "≈", "dots": "…"}
_UNTITLED = {"search": "Search", "genindex": "Index"}  # pages that their templates name
_NO_USE = re.compile(  # what layout.html has in its own form, draws icons, or nobody reads
    r"\s*<!-- So that users can add custom icons -->|<script[^>]*fontawesome\.js[^>]*></script>"
    r"|<script data-cfasync.*?</script>|<script>DOCUMENTATION_OPTIONS\.pagename[^<]*</script>"
    r'|<link rel="preload"[^>]*>|\s*<script[^<]*mathjax[^<]*</script>'
    r"|<link[^>]*/(?:theme|sphinx|togglebutton|copybutton|mystnb)[^>/]*\.css[^>]*>",
    re.S | re.I,
)
_MATH = re.compile(r'class="(?:[^"]* )?math\b|"tex": |"text": "[^"]*\$')
_WORD, _COMMA = re.compile(r"[A-Za-z_][\w-]*"), re.compile(r",(?![^()]*\))")
_RULE = re.compile(r"/\*.*?\*/|((?:(?!/\*)[^{}@;])+)(\{[^{}]*\})")
_VARIABLE = re.compile(r"""(--[\w-]+):(?:"[^"]*"|\((?:[^()]|\([^()]*\))*\)|[^;{}"()])*;?""")
_NAMED = re.compile(r":\w[\w-]*\([^)]*\)|[.#](-?[A-Za-z_][\w-]*)")
_ICON_FONT = re.compile(r"src:url\(\.\./(vendor/fontawesome/webfonts/fa-(\w+)-\d+)\.woff2\)[^}]*")
_SIGNATURE_LINES = re.compile(r"<dl>\s*((?:<dd>(?:(?!</?d[ld]\b).)*</dd>\s*)+)</dl>", re.S)
_OLD_ROLE = re.compile(r' role="(?:doc-biblioentry|list(?=" class="citation-list))"')


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), trim_blocks=True,
    autoescape=lambda name: name.startswith("explorer"),
)  # fmt: skip


def template(name: str) -> Template:
    """Return a template of the book by the name of its file."""
    return _ENVIRONMENT.get_template(name)


def mended(head: str, can_wait: bool) -> str:
    """Return a part of a page's head whose scripts, if they can, wait until the page is read."""
    head = _NO_USE.sub("", head).replace("/pydata-sphinx-theme.css", "/all.css")
    return re.sub(r"<script (?!defer)(?=[^>]*\bsrc=)", "<script defer ", head) if can_wait else head


def slim(out: Path) -> None:
    """Make one style sheet of the theme's, and fonts of its icons, with what pages can use."""
    static = out / "_static"
    texts = [" ".join(_NAMES.findall(x.read_text("utf8"))) for x in out.rglob("*.html")]
    texts += [x.read_text("utf8") for x in (*static.glob("*.js"), *static.glob("[ls]*/[!bf]*.js"))]
    known = {""}.union(*map(_WORD.findall, texts))

    def rule(match: re.Match[str]) -> str:
        kept = [s for s in _COMMA.split(match[1] or "") if known.issuperset(_NAMED.findall(s))]
        return match[0] if not match[2] else ",".join(kept) + match[2] if kept else ""

    def used(sheet: Path) -> str:
        text = re.sub(r"(?s)/\*[^!].*?\*/", "", sheet.read_text("utf8"))
        text = _RULE.sub(rule, " ".join(text.split()))
        return re.sub(r"url\((?=\w+\.)", "url(../", text) if sheet.parent == static else text

    css = "\n".join(used(sheet) for name in SHEETS.split() for sheet in static.glob(f"{name}.css"))
    own = "".join(x.read_text("utf8") for x in static.glob("*.css"))
    asked = {*re.findall(r"var\((--[\w-]+)", css + own)}
    css = _VARIABLE.sub(lambda given: given[0] if given[1] in asked else "", css)
    subsetter = Subsetter()
    signs = {int(sign, 16) for sign in re.findall(r"\\([ef]\w{3})\b", css)}
    subsetter.populate(unicodes=signs | {*map(ord, re.findall("[\ue000-\uf8ff]", css))})

    def font(rule: re.Match[str]) -> str:
        whole = TTFont(static / f"{rule[1]}.ttf", recalcTimestamp=False)
        subsetter.subset(whole)
        whole.flavor = "woff"
        whole.save(static / f"icons-{rule[2]}.woff")
        return f'src:url(../icons-{rule[2]}.woff) format("woff")'

    (static / "styles" / "all.css").write_text(_ICON_FONT.sub(font, css), encoding="utf8")


def _plain(formula: str) -> str:
    """Return a formula of a few letters as plain text."""
    for command, sign in _SIGNS.items():
        formula = re.sub(rf"\\{command}(?![a-zA-Z])\s*", sign, formula)
    return re.sub(r"\\[a-zA-Z]+|[\\{}]", "", formula).strip()


def describe(doctree: nodes.document) -> str:
    """Return what the first paragraph of a page says, at most 200 characters of plain text."""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section):
            continue
        copy = paragraph.deepcopy()
        for formula in list(copy.findall(nodes.math)):
            formula.replace_self(nodes.Text(_plain(formula.astext())))
        for link in [n for n in copy.findall(pending_xref) if n["refdomain"] == "cite"]:
            link.parent.remove(link)
        text = " ".join(copy.astext().split())
        if len(text.split()) > 3:
            return textwrap.shorten(text, DESCRIPTION_LENGTH, placeholder="…")
    return ""


def plain(body: str) -> str:
    """Return a page without lists that have no terms and roles that ARIA has taken back."""
    body = _SIGNATURE_LINES.sub(
        lambda x: f'<div class="sig-lines">{x[1].replace("dd>", "div>")}</div>', body
    )
    return _OLD_ROLE.sub("", body)


def _head(app, pagename: str, context: dict, doctree) -> str:
    title = context.get("title") or _UNTITLED.get(pagename) or app.config.html_title
    title, site = html.unescape(re.sub(r"<[^>]*>", "", title)), app.config.html_title
    text = (describe(doctree) if doctree is not None else "") or f"{title}. {site}"
    pairs = {"type": "article", "title": title, "site_name": site, "description": text}
    if app.config.html_baseurl and context.get("pageurl"):
        pairs["url"] = context["pageurl"]
    tags = (f'<meta property="og:{x}" content="{html.escape(y)}" />\n' for x, y in pairs.items())
    return f'<meta name="description" content="{html.escape(text)}" />\n{"".join(tags)}'


def _page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    context["has_math"] = bool(_MATH.search(context.get("body", "")))
    context["mended"] = lambda head: mended(head, pagename != "search")
    context["metatags"] = (context.get("metatags") or "") + _head(app, pagename, context, doctree)
    if "body" in context:
        context["body"] = plain(context["body"])
        if doctree is not None and pagename in toc_pages(Path(app.srcdir)):
            context["body"] += cite(app, pagename, context["title"])


def cite(app, pagename: str, title: str) -> str:
    """Return how a page is cited, in words and in BibTeX, from ``CITATION.cff``."""
    base = app.config.html_baseurl
    return template("cite.html").render(
        book=read(Path(app.srcdir, "CITATION.cff")), url=base and f"{base}{pagename}.html",
        title=re.sub(r"^\d+\.\s+", "", html.unescape(re.sub(r"<[^>]*>", "", title))),
        page=pagename.removeprefix("book/").replace("/", "-"),
    )  # fmt: skip


def _share_lists(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Let pages that no list of pages has, those of source code, share one for each folder."""
    if pagename not in app.env.found_docs:
        known, plain, folder = app.env.temp_data, context["toctree"], posixpath.dirname(pagename)

        def toctree(**given):
            key = ("list", folder, *given.items())
            return known.get(key) or known.setdefault(key, plain(**given))

        context["toctree"] = toctree


def _finished(app, exception) -> None:
    """Write the pages that are no part of the book's order; the root page before others do."""
    if exception is not None or app.builder.format != "html":
        return
    out, config = Path(app.outdir), app.config
    slim(out)
    base = config.html_baseurl.rstrip("/") + "/" if config.html_baseurl else ""
    first = f"{config.root_doc}.html"
    words = {
        "language": config.language or "en", "title": html.escape(config.html_title),
        "root": html.escape(base), "first": first, "canonical": html.escape(base + first),
        "description": html.escape(describe(app.env.get_doctree(config.root_doc))),
        "pages": sorted(app.env.found_docs),
    }  # fmt: skip
    (out / "sitemap.xml").unlink(missing_ok=True)
    made = {"index.html": "root.html", "404.html": "404.html"}
    for name, source in (made | ({"sitemap.xml": "sitemap.xml"} if base else {})).items():
        (out / name).write_text(template(source).render(words), encoding="utf8")


def setup(app):
    """Register the events."""
    app.connect("html-page-context", _share_lists, priority=400)  # before the theme's own
    app.connect("html-page-context", _page, priority=900)  # after it
    app.connect("build-finished", _finished, priority=100)
