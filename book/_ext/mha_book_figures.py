"""Figures: each has the size it was drawn for, 96 pixels an inch, and labels that can be read.

A phone shows the narrow drawing that an SVG can have in a comment; where the smallest label would
be less than ``SMALLEST_LABEL`` high, it scrolls in a box of its own. All but the first of a page
are loaded late. In the dark theme ``book.css`` turns them, white being the ground.
"""

import io
import re
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

SMALLEST_LABEL, PHONE = 9.5, 350  # pixels; what a picture has there
NARROW = b"<!--narrow "
WHOLE = (  # below a picture that scrolls there
    '<label class="figure-whole d-print-none"><input type="checkbox" autocomplete="off"/> '
    "the whole picture, smaller</label>"
)
_SIZE = 'width="{:.0f}" height="{:.0f}"'.format
_GLYPHS = re.compile(r" scale\(([\d.]+) -\1\)")  # of a text, in hundreds of points
_LENGTHS = re.compile(r'<svg\b[^>]*? width="([\d.]+)pt" height="([\d.]+)pt"')
_IMAGE = re.compile(r'<img\b[^>]*?\bsrc="([^"]*)"[^>]*>')
_STYLE = re.compile(r'\b(?:class|style)="[^"]*" ?')


def facts(data: bytes) -> tuple[float, float, float] | None:
    """Return width and height of a picture and of its smallest label in pixels of a page.

    The label is 0 where it is not known. None where the picture does not say how large it is.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        image = Image.open(io.BytesIO(data))
        inch = image.info.get("dpi", (0,))[0] / 96
        label = float(image.info.get("smallest label", "0 pt").split()[0])
        return (image.width / inch, image.height / inch, label * 4 / 3) if inch > 0.01 else None
    text = data.partition(NARROW)[0].decode()
    if not (lengths := _LENGTHS.search(text)):
        return None
    label = min((100 * float(size) for size in _GLYPHS.findall(text)), default=0.0)
    return float(lengths[1]) * 4 / 3, float(lengths[2]) * 4 / 3, label * 4 / 3


def sized(body: str, sources: Mapping[str, Path], folder: Path) -> str:
    """Return a page's text whose pictures have their size; ``folder`` gets the narrow ones."""
    late = iter(["", *[' loading="lazy"'] * body.count("<img")])

    def size(match: re.Match[str]) -> str:
        tag, name = match[0], Path(match[1]).name
        data = sources[name].read_bytes() if name in sources else b""
        if (known := facts(data)) is None:
            return tag
        image = f'<img class="dark-light" decoding="async"{next(late)} {_SIZE(*known)} '
        image += _STYLE.sub("", tag)[len("<img ") :]
        if narrow := data.partition(NARROW)[2].removesuffix(b"-->"):
            folder.mkdir(exist_ok=True)
            (folder / f"narrow-{name}").write_bytes(narrow)
            path, known = match[1].replace(name, f"narrow-{name}"), facts(narrow)
            source = f'<source media="(max-width: 576px)" srcset="{path}" {_SIZE(*known)}/>'
            image = f"<picture>{source}{image}</picture>"
        least = known[2] and known[0] * min(1, SMALLEST_LABEL / known[2])
        scroll = f'<span class="figure-scroll" style="--least: {least:.0f}px">{image}</span>'
        return scroll + (WHOLE if least > PHONE else "")

    return _IMAGE.sub(size, body)


def _page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    if "_images/" in context.get("body", ""):
        sources = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}
        context["body"] = sized(context["body"], sources, Path(app.outdir, app.builder.imagedir))


def setup(app):
    """Register the event."""
    app.connect("html-page-context", _page, priority=890)
