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

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from mha_book_toc import toc_pages
from sphinx.util.docutils import SphinxDirective

from mha_book.notation.page import displayed_equations, page_text

EVERYWHERE = "everywhere"

GREEK = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi
    rho varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma
    Upsilon Phi Psi Omega ell imath jmath
"""
LETTERS = {f"\\{name}" for name in GREEK.split()}
ACCENTS = {"hat": "hat", "widehat": "hat", "tilde": "tilde", "widetilde": "tilde", "bar": "bar",
    "overline": "bar", "check": "check", "dot": "dot", "vec": "vec"}  # fmt: skip
FONTS = {"mathbf", "boldsymbol", "bm", "mathit", "mathsf", "mathcal"}
WORDS = {"text", "mathrm", "operatorname", "operatorname*", "texttt", "textbf", "textit", "mathtt",
    "mathbb", "begin", "end", "label", "tag", "hspace", "color", "textsf"}  # fmt: skip
SPACES = {"\\,", "\\;", "\\!", "\\:", "\\ ", "\\quad", "\\qquad"}
CONSTANTS = {"e", "\\pi"}  # with their meaning everywhere
_TOKEN = re.compile(
    r"\\\\\[[^\]]*\]|\\operatorname\*|\\[A-Za-z]+|\\.|[A-Za-z]|\d+(?:\.\d+)?|\s+|.", re.S
)
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
    table = yaml.safe_load(path.read_text(encoding="utf8")) or {}
    return [Declared(page, **entry) for page, entries in table.items() for entry in entries or ()]


class _Scanner:
    """Goes through LaTeX once and notes every letter that means something."""

    def __init__(self, latex: str) -> None:
        self.tokens = _TOKEN.findall(latex)
        self.at = 0
        self.found: list[Symbol] = []
        self.outer: list[Symbol] = []  # those that are no index and stand in no exponent

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def skip_space(self) -> None:
        while self.peek() and (self.peek().isspace() or self.peek() in SPACES):
            self.at += 1

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ""

    def group(self) -> str:
        """Take what stands between braces, or one token."""
        self.skip_space()
        if self.peek() != "{":
            return self.take()
        depth, start = 0, self.at + 1
        while token := self.take():
            depth += {"{": 1, "}": -1}.get(token, 0)
            if depth == 0:
                break
        return "".join(self.tokens[start : self.at - 1])

    def run(self) -> list[Symbol]:
        """Scan everything."""
        while token := self.take():
            name = token[1:] if token.startswith("\\") else ""
            if name in WORDS:
                self.group()
            elif name in ACCENTS:
                self.accented(ACCENTS[name], self.group())
            elif name in FONTS:
                content = self.group().strip()
                self.letter("", f"\\{name}{{{content}}}" if name == "mathcal" else content)
            elif token == "d" and self.is_differential():
                continue  # dQ is the gradient by Q
            elif token in LETTERS or (len(token) == 1 and token.isalpha()):
                self.letter("", token)
        return self.found

    def is_differential(self) -> bool:
        following = self.peek()
        return bool(following) and (
            following.isupper()
            or following in LETTERS - {"\\ell"}
            or following.removeprefix("\\") in ACCENTS
        )

    def accented(self, accent: str, content: str) -> None:
        inside = _Scanner(content).run()
        if len(inside) == 1:
            self.letter(accent, inside[0].letter, inside[0].below)
        else:
            self.found += inside

    def letter(self, accent: str, letter: str, below: str = "") -> None:
        """Note a letter with what hangs on it."""
        if not (len(letter) == 1 and letter.isalpha()) and not letter.startswith("\\"):
            self.found += _Scanner(letter).run()
            return
        primes, array = "", False
        while True:
            here = self.at
            self.skip_space()
            match self.take():
                case "'":
                    primes += "'"
                case "_":
                    below = self.subscript(self.group())
                case "^":
                    array = self.upper(self.group()) or array
                case _:
                    self.at = here
                    break
        if letter not in CONSTANTS:
            letter = letter.replace("\\var", "\\", 1)
            symbol = Symbol(letter, accent, below, primes, array)
            self.found.append(symbol)
            self.outer.append(symbol)

    def subscript(self, content: str) -> str:
        """Return a subscript that belongs to the name; scan one that is an expression."""
        plain = re.sub(r"\\(?:text|mathrm|operatorname)\{([^}]*)\}", r"\1", content).strip()
        if re.fullmatch(r"\d+", plain):
            return ""
        if re.fullmatch(r"[A-Za-z]+|\\[a-z]+", plain):
            return plain
        self.found += _Scanner(content).run()
        return ""

    def upper(self, content: str) -> bool:
        """Whether an exponent holds indices; scan them."""
        if _POWER.fullmatch(content.strip()):
            return False
        inside = _Scanner(content).run()
        self.found += inside
        if content.strip().startswith("-") or "/" in content:
            return False  # a power
        return any(len(symbol.letter) == 1 and symbol.letter.islower() for symbol in inside)


def scan(latex: str) -> list[Symbol]:
    """Return every occurrence of a symbol in a formula, those of its indices among them."""
    return _Scanner(latex).run()


def symbols_of(declared: Declared) -> list[Symbol]:
    """Return what an entry declares: one symbol, or several with commas between."""
    found = []
    for piece in _pieces(declared.symbol):
        scanner = _Scanner(piece)
        scanner.run()
        found += scanner.outer[:1]
    return found


def _pieces(symbols: str) -> list[str]:
    return re.split(r",\s+(?![^{]*\})", symbols)


def is_known(symbol: Symbol, known: set[Symbol]) -> bool:
    """Whether a symbol is one of those known, a prime or a lower index more allowed."""
    kinds = (True,) if symbol.array else (False, True)
    is_index = re.fullmatch(r"[a-z]{1,2}", symbol.below)
    belows = (symbol.below, "") if is_index else (symbol.below,)
    several = itertools.product(belows, (symbol.primes, ""), kinds)
    return any(Symbol(symbol.letter, symbol.accent, *each) in known for each in several)


def undeclared(latex: str, known: set[Symbol]) -> list[Symbol]:
    """Return the symbols of a formula that are declared nowhere."""
    return sorted({symbol for symbol in scan(latex) if not is_known(symbol, known)})


def symbols_by_page(formulas: dict[str, list[str]]) -> dict[str, set[Symbol]]:
    """Return the symbols that stand on each page: page -> LaTeX of its formulas."""
    return {
        page: {symbol for latex in shown for symbol in scan(latex)}
        for page, shown in formulas.items()
    }


def declaration_problems(declared: list[Declared], formulas: dict[str, list[str]]) -> list[str]:
    """Return what is wrong with the declarations.

    Args:
        declared: the entries.
        formulas: page -> the LaTeX of every formula on it, inline ones too.
    """
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

    Args:
        declared: the entries.
        displayed: page -> (label, LaTeX) of each displayed equation.
    """
    known = {symbol for entry in declared for symbol in symbols_of(entry)}
    found = []
    for page, shown in displayed.items():
        where: dict[Symbol, list[str]] = {}
        for label, latex in shown:
            for symbol in undeclared(latex, known):
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


def book_formulas(root: Path) -> dict[str, list[str]]:
    """Return every formula of every notebook, displayed and in the line, by short name."""
    return {
        page: [latex for _, latex in displayed_equations(text)] + inline_formulas(text)
        for page, text in chapter_texts(root).items()
    }


def checked_equations(root: Path) -> dict[str, list[tuple[str | None, str]]]:
    """Return the displayed equations of every notebook, by short name."""
    return {page: displayed_equations(text) for page, text in chapter_texts(root).items()}


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


class SymbolTable(SphinxDirective):
    """``{symbol-table} letters`` or ``symbols``: those that count things, or all others."""

    required_arguments = 1

    def run(self):
        """Render the table as Markdown, so that its formulas and links are the page's own."""
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / "book" / "symbols.yml"))
        for page in toc_pages(root):
            if (notebook := root / f"{page}.ipynb").exists():
                self.env.note_dependency(str(notebook))
        entries = load_symbols(root)
        counts = [entry for entry in entries if entry.code]
        if self.arguments[0] == "letters":
            rows = ["| letter | index | what it counts | name in the code |", "|---|---|---|---|"]
            rows += [self.letter(entry) for entry in counts]
        else:
            on_page = symbols_by_page(book_formulas(root))
            rows = ["| symbol | shape | what it is | first in |", "|---|---|---|---|"]
            rows += [self.row(entry, on_page) for entry in entries if not entry.code]
        box = nodes.container(classes=["wide-table", "symbol-table"])
        self.state.nested_parse(StringList(rows, "book/symbols.yml"), 0, box)
        return [box]

    def letter(self, entry: Declared) -> str:
        """Return the row of a letter that counts something."""
        index = ", ".join(f"${letter.strip()}$" for letter in entry.index.split(",") if letter)
        code = "–" if entry.code == "–" else f"`{entry.code}`"
        return f"| ${entry.symbol}$ | {index} | {entry.meaning} | {code} |"

    def row(self, entry: Declared, on_page: dict[str, set[Symbol]]) -> str:
        """Return the row of a symbol, with the chapter where it stands first."""
        symbols = symbols_of(entry)
        first = next(
            (
                page
                for page, there in on_page.items()
                if entry.page in (EVERYWHERE, page)
                and any(is_known(other, set(symbols)) for other in there)
            ),
            "",
        )
        shown = ", ".join(f"${piece}$" for piece in _pieces(entry.symbol))
        shape = f"${entry.shape}$" if entry.shape else ""
        link = f"[](/book/{first})" if first else ""
        return f"| {shown} | {shape} | {entry.meaning} | {link} |"


def setup(app):
    """Register the directive."""
    app.add_directive("symbol-table", SymbolTable)


if __name__ == "__main__":
    problems = symbol_problems(Path(__file__).parents[2])
    print("\n".join(problems) or "every symbol is declared, once")
    sys.exit(bool(problems))
