"""Teaching from the book: what the chapters promise and take, paths, and the instructor's guide.

``{course} NAME`` fills ``_templates/course-NAME.md`` with the chapters, whose objectives and times
come from the chapters themselves, and with ``book/teaching.yml``, in which ``{= 3/4*8 | .1f}`` is
computed and ``{head smollm2 18.6 repeat}`` is a link to the explorer.
"""

import functools
import math
import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from mha_book_equations import add_directive
from mha_book_explorer import DATA
from mha_book_html import template
from mha_book_pages import words
from mha_book_toc import read, read_parts

NOTES = Path("book") / "teaching.yml"
A_MINUTE = 200  # words of prose
_OBJECTIVES = re.compile(r"^After this chapter you can\n\n((?:- .+\n?)+)", re.M)
_NUMBER, _HEAD = re.compile(r"\{= (.+?)(?: \| (\S+))?\}"), re.compile(r"\{head (\S+) (\S+) (\S+)\}")


def minutes(exercise: int) -> int:
    """Return what an exercise takes: ten minutes for the first, five more for each that follows."""
    return 5 + 5 * exercise


def objectives(text: str) -> list[str]:
    """Return what a chapter promises: one to four things that its reader can then do."""
    found = [line[2:].rstrip(";.") for m in _OBJECTIVES.findall(text) for line in m.splitlines()]
    if not 1 <= len(found) <= 4:
        raise ValueError(f"objectives: expected one to four, got {len(found)}: {text[:60]!r}")
    return found


def computed(text: str, titles: dict[str, str]) -> str:
    """Return a text with its numbers computed and its links to the explorer's heads."""

    def number(match: re.Match[str]) -> str:
        value = eval(match[1], vars(math) | {"sum": sum, "range": range})
        said = format(value, match[2]) if match[2] else f"{value:.2f}".rstrip("0").rstrip(".")
        return said.replace("-", "−")

    def head(match: re.Match[str]) -> str:
        model, place, sentence = match.groups()
        query = f"model={model}&amp;head={place}&amp;sentence={sentence}"
        name = "L{}H{}".format(*place.split("."))
        return f'<a href="explorer.html?{query}">{name} on “{titles[sentence]}”</a>'

    return _HEAD.sub(head, _NUMBER.sub(number, text))


@functools.cache  # a build asks six times, and reads every chapter for it
def chapters(root: Path) -> list[dict]:
    """Return the introduction and the numbered chapters, with what they promise and take."""
    notes = read(root / NOTES)["chapters"]
    titles = {key: each["title"] for key, each in read(root / DATA)["sentences"].items()}
    found = []
    for part in read_parts(root):
        for page in (page for page in part.pages if Path(page).name in notes):
            texts = ["".join(c["source"]) for c in read(root / f"{page}.ipynb")["cells"]]
            text, name = "\n\n".join(texts), Path(page).name
            count = len(re.findall(r"^### Exercise", text, re.M))
            found.append({
                "name": name, "title": re.split(r": | \(", texts[0].splitlines()[0][2:])[0],
                "part": part.caption, "objectives": objectives(text),
                "reading": 5 * math.ceil(words(text) / A_MINUTE / 5),
                "exercises": sum(map(minutes, range(1, count + 1))),
                "slides": (root / "book" / "slides" / f"{name}.yml").exists(),
                **{k: computed(v, titles) if isinstance(v, str) else v
                   for k, v in notes[name].items()},
            })  # fmt: skip
    return found


def course(self):
    """``{course} NAME``."""
    root, file = Path(self.env.srcdir), f"course-{self.arguments[0]}.md"
    self.env.note_reread()  # it is about all chapters
    every = chapters(root)
    text = template(file).render(
        read(root / NOTES), every=every, chapter={each["name"]: each for each in every}
    )
    box = nodes.container(classes=["course"])
    self.state.nested_parse(StringList(text.splitlines(), file), 0, box)
    return [box]


def setup(app):
    """Register the directive."""
    add_directive(app, "course", course, required_arguments=1)
