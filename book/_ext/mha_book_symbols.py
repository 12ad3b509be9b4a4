r"""The symbols of the book: declared in ``book/symbols.yml``, one meaning each, and found in LaTeX.

``{symbol-table}`` on the notation page renders the file; ``tests/book/test_symbols.py`` holds that
no symbol has two meanings, that each stands on the page that declares it, and that no displayed
equation of a chapter has a symbol that is declared nowhere. What is wrong says
``python book/_ext/mha_book_symbols.py``.

A symbol is a letter with its accent and its subscript. With upper indices it is an array, without
them a number or a letter of an index: ``K^{hja}`` (the keys) and ``K`` (how many heads have them)
are two symbols, as the book's shapes need them to be. A prime makes no new symbol (``i'`` is
another value of ``i``), nor does a number below (``x_1``), nor a lower index (``\theta_p``).
"""

import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from mha_book_equations import add_directive
from mha_book_html import template
from mha_book_toc import read, toc_pages

from mha_book.notation.page import displayed_equations, page_text

EVERYWHERE = "everywhere"

GREEK = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi
    rho varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma
    Upsilon Phi Psi Omega ell imath jmath
"""
ACCENTS = {"widehat": "hat", "widetilde": "tilde", "overline": "bar"}
ACCENTS |= {name: name for name in ("hat", "tilde", "bar", "check", "dot", "vec")}
FONTS = ("mathbf", "boldsymbol", "bm", "mathit", "mathsf")
WORDS = ("text", "mathrm", "operatorname", "texttt", "textbf", "textit", "mathtt", "mathbb",
    "begin", "end", "label", "tag", "hspace", "color", "textsf")  # fmt: skip
CONSTANTS = ("e", "\\pi")  # with their meaning everywhere
_SPACE = r"(?:\s|\\[,;!: ]|\\q?quad)*"
_INSIDE = "[^{}]*"
for _ in range(3):  # braces in braces
    _INSIDE = rf"[^{{}}]*(?:\{{{_INSIDE}\}}[^{{}}]*)*"
_GROUP = rf"{_SPACE}(?:\{{{_INSIDE}\}}|\\[A-Za-z]+|[^\s{{}}])"
_MARK = re.compile(rf"{_SPACE}('|[_^]{_GROUP})")  # what hangs on a letter
_LETTER = rf"\\mathcal{_GROUP}|\\(?:{'|'.join(GREEK.split())})(?![A-Za-z])|[A-Za-z]"
_OVER = rf"\\(?P<over>{'|'.join((*ACCENTS, *FONTS))})(?![A-Za-z])(?P<under>{_GROUP})"
_GRADIENT = (
    rf"d(?=[A-Z]|(?!\\ell|\\mathcal)\\(?:{'|'.join((*GREEK.split(), *ACCENTS))})(?![A-Za-z]))"
)
_ATOM = re.compile(
    rf"\\(?:{'|'.join(WORDS)})(?![A-Za-z])\*?{_GROUP}|{_GRADIENT}"
    rf"|(?:{_OVER}|(?P<letter>{_LETTER}))(?P<marks>(?:{_MARK.pattern})*)"
    r"|\\\\\[[^\]]*\]|\\[A-Za-z]+|\\.",
    re.S,
)
_UPRIGHT = re.compile(r"\\(?:text|mathrm|operatorname)\{([^}]*)\}")
# What hangs above a letter and is no index.
_POWER = re.compile(r"\\top|\\star|\*|T|'+|\\prime|[-+]?\d+|-?\d*/\d+|\\infty")


@dataclass(frozen=True, order=True)
class Symbol:
    """A letter as LaTeX writes it, with its accent and subscript; an array has upper indices."""

    letter: str
    accent: str = ""
    below: str = ""
    primes: str = ""
    array: bool = False

    def __str__(self) -> str:
        name = f"\\{self.accent} {self.letter}" if self.accent else self.letter
        below = f"_{{{self.below}}}" if self.below else ""
        return f"{name}{self.primes}{below}{'^{…}' if self.array else ''}"


@dataclass(frozen=True)
class Declared:
    """An entry of ``book/symbols.yml``."""

    page: str
    symbol: str
    meaning: str
    shape: str = ""
    index: str = ""
    code: str = ""


def load_symbols(root: Path) -> list[Declared]:
    """Read the declarations, in their order."""
    path = root / "book" / "symbols.yml"
    table = read(path) or {}
    return [Declared(page, **entry) for page, entries in table.items() for entry in entries or ()]


def _bare(group: str) -> str:
    """Return what stands between braces, or the one token."""
    text = re.sub(rf"^{_SPACE}", "", group)
    return (text[1:-1] if text.startswith("{") else text).strip()


def scan(latex: str) -> list[Symbol]:
    """Return every occurrence of a symbol in a formula, after those of its indices."""
    found: list[Symbol] = []
    for atom in _ATOM.finditer(latex):
        letter, over, below, primes, array = atom["letter"], atom["over"] or "", "", "", False
        if over:
            inside = scan(_bare(atom["under"]))
            if len(inside) != 1:
                found += [*inside, *scan(atom["marks"])]
                continue
            letter, below = inside[0].letter, inside[0].below
        elif letter and letter.startswith("\\mathcal"):
            letter = f"\\mathcal{{{_bare(letter[8:])}}}"
        for mark in _MARK.findall(atom["marks"] or ""):
            content = _bare(mark[1:])
            if mark == "'":
                primes += "'"
            elif mark[0] == "_":  # a name, a number or an expression
                plain = _UPRIGHT.sub(r"\1", content).strip()
                below = plain if re.fullmatch(r"[A-Za-z]+|\\[a-z]+", plain) else ""
                found += [] if below or plain.isdigit() else scan(content)
            elif not _POWER.fullmatch(content):
                inside, is_power = scan(content), content.startswith("-") or "/" in content
                found += inside
                indices = (s for s in inside if len(s.letter) == 1 and s.letter.islower())
                array = array or (not is_power and any(indices))
        if letter and letter not in CONSTANTS:
            short = letter.replace("\\var", "\\", 1)
            found.append(Symbol(short, ACCENTS.get(over, ""), below, primes, array))
    return found


def symbols_of(declared: Declared) -> list[Symbol]:
    """Return what an entry declares: one symbol, or several with commas between."""
    return [
        symbol
        for piece in _pieces(declared.symbol)
        for symbol in scan(re.sub(r"\([^}]*$", "", piece))[-1:]
    ]


def _pieces(symbols: str) -> list[str]:
    return re.split(r",\s+(?![^{]*\})", symbols)


def is_known(symbol: Symbol, known: set[Symbol]) -> bool:
    """Whether a symbol is one of those known, a prime or a lower index more allowed."""
    kinds = (True,) if symbol.array else (False, True)
    is_index = re.fullmatch(r"[a-z]{1,2}", symbol.below)
    belows = (symbol.below, "") if is_index else (symbol.below,)
    several = itertools.product(belows, (symbol.primes, ""), kinds)
    return any(Symbol(symbol.letter, symbol.accent, *each) in known for each in several)


def symbols_by_page(formulas: dict[str, list[str]]) -> dict[str, set[Symbol]]:
    """Return the symbols that stand on each page: page -> LaTeX of its formulas."""
    return {page: {s for x in shown for s in scan(x)} for page, shown in formulas.items()}


def declaration_problems(declared: list[Declared], formulas: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with the declarations, given every formula of each page, inline too."""
    found = []
    meaning: dict[Symbol, Declared] = {}
    on_page = symbols_by_page(formulas)
    for entry in declared:
        symbols = symbols_of(entry)
        if not symbols:
            found.append(f"{entry.page}: {entry.symbol!r} is no symbol")
        for symbol in symbols:
            first = meaning.setdefault(symbol, entry)
            if first.meaning != entry.meaning:
                found.append(
                    f"{symbol} has two meanings: {first.meaning!r} ({first.page}) and "
                    f"{entry.meaning!r} ({entry.page})"
                )
            pages = [*on_page] if entry.page == EVERYWHERE else [entry.page]
            if entry.page not in {EVERYWHERE, *formulas}:
                found.append(f"{entry.page}: no page of the book declares {symbol}")
            elif not any(is_known(other, {symbol}) for page in pages for other in on_page[page]):
                found.append(f"{entry.page}: {symbol} is declared, and does not stand there")
    return found


def undeclared_symbols(
    declared: list[Declared], displayed: dict[str, list[tuple[str | None, str]]]
) -> list[str]:
    """Return the symbols of displayed equations that no page declares, a line a page and symbol.

    ``displayed`` has (label, LaTeX) of each equation of a page.
    """
    known = {symbol for entry in declared for symbol in symbols_of(entry)}
    found = []
    for page, shown in displayed.items():
        where: dict[Symbol, list[str]] = {}
        for label, latex in shown:
            for symbol in {symbol for symbol in scan(latex) if not is_known(symbol, known)}:
                where.setdefault(symbol, []).append(str(label))
        found += [
            f"{page}: {symbol} is declared nowhere; it stands in {', '.join(labels)}"
            for symbol, labels in sorted(where.items())
        ]
    return found


def chapter_texts(root: Path) -> dict[str, str]:
    """Return the Markdown of every notebook of the book, by short name."""
    paths = (root / f"{page}.ipynb" for page in toc_pages(root))
    return {path.stem: page_text(path) for path in paths if path.exists()}


def checked_equations(root: Path) -> dict[str, list[tuple[str | None, str]]]:
    """Return the displayed equations of every notebook, by short name."""
    return {page: displayed_equations(text) for page, text in chapter_texts(root).items()}


def book_formulas(root: Path) -> dict[str, list[str]]:
    """Return every formula of every notebook, displayed and in the line, by short name."""
    shown = {page: [latex for _, latex in own] for page, own in checked_equations(root).items()}
    return {page: shown[page] + inline_formulas(text) for page, text in chapter_texts(root).items()}


def symbol_problems(root: Path) -> list[str]:
    """Return everything that is wrong between ``book/symbols.yml`` and the chapters."""
    declared = load_symbols(root)
    return [
        *declaration_problems(declared, book_formulas(root)),
        *undeclared_symbols(declared, checked_equations(root)),
    ]


_INLINE = re.compile(r"(?<![\\$])\$(?!\$)([^$]+?)\$(?!\$)")


def inline_formulas(markdown: str) -> list[str]:
    """Return the formulas in the lines of a text."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S)
    text = re.sub(r"\$\$.+?\$\$", " ", text, flags=re.S)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", " ", text)
    return _INLINE.findall(text)


def symbol_table(self):
    """``{symbol-table} letters`` or ``symbols``: those that count things, or all others.

    The table is Markdown, so that its formulas and links are the page's own.
    """
    self.env.note_reread()  # the symbols are of all pages
    root = Path(self.env.srcdir)
    on_page = symbols_by_page(book_formulas(root))

    def first(entry: Declared) -> str:
        """Return the chapter where a symbol stands first."""
        symbols = set(symbols_of(entry))
        pages = on_page if entry.page == EVERYWHERE else [entry.page]
        has = (page for page in pages if any(is_known(s, symbols) for s in on_page.get(page, ())))
        return next(has, "")

    text = template("symbols.md").render(
        letters=self.arguments[0] == "letters", entries=load_symbols(root), pieces=_pieces,
        first=first,
    )  # fmt: skip
    box = nodes.container(classes=["wide-table", "symbol-table"])
    self.state.nested_parse(StringList(text.splitlines(), "book/symbols.yml"), 0, box)
    return [box]


def setup(app):
    """Register the directive."""
    add_directive(app, "symbol-table", symbol_table, required_arguments=1)


if __name__ == "__main__":
    problems = symbol_problems(Path(__file__).parents[2])
    print("\n".join(problems) or "every symbol is declared, once")
    sys.exit(bool(problems))
