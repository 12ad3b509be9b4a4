"""Figures: each has the size it was drawn for, 96 pixels an inch, and labels that can be read.

A phone shows them as wide as it is where their smallest label is ``FITTING`` high then; wider ones
get smaller until it is ``SMALLEST_LABEL`` high, and scroll in a box of their own. All but the first
of a page are loaded late. In the dark theme ``book.css`` turns them, white being the ground.
"""

import io
import re
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

SMALLEST_LABEL, FITTING = 9.0, 7.0  # pixels
PHONE = 350  # pixels that a picture has there
WHOLE = (
    '<label class="figure-whole d-print-none"><input type="checkbox" autocomplete="off"/> '
    "the whole picture, smaller</label>"
)
"""Below a picture that scrolls on a phone."""
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
        dots = image.info.get("dpi", (0, 0))[0]
        label = float(image.info.get("smallest label", "0 pt").split()[0])
        if dots < 1:
            return None
        return image.width * 96 / dots, image.height * 96 / dots, label * 4 / 3
    text = data.decode()
    if not (lengths := _LENGTHS.search(text)):
        return None
    label = min((100 * float(size) for size in _GLYPHS.findall(text)), default=0.0)
    return float(lengths[1]) * 4 / 3, float(lengths[2]) * 4 / 3, label * 4 / 3


def sized(body: str, sources: Mapping[str, Path]) -> str:
    """Return the text of a page whose pictures have their size; ``sources`` has their files."""
    late = iter(["", *[' loading="lazy"'] * body.count("<img")])

    def size(match: re.Match[str]) -> str:
        tag, name = match[0], Path(match[1]).name
        known = facts(sources[name].read_bytes()) if name in sources else None
        if known is None:
            return tag
        width, height, label = known
        least = min(width, width * FITTING / label) if label else 0
        least = least if least <= PHONE else min(width, width * SMALLEST_LABEL / label)
        new = f'<img class="dark-light" decoding="async"{next(late)} width="{width:.0f}" '
        image = f'{new}height="{height:.0f}" {_STYLE.sub("", tag)[len("<img ") :]}'
        scroll = f'<span class="figure-scroll" style="--least: {least:.0f}px">{image}</span>'
        return scroll + (WHOLE if least > PHONE else "")

    return _IMAGE.sub(size, body)


def _page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    if "_images/" in context.get("body", ""):
        sources = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}
        context["body"] = sized(context["body"], sources)


def setup(app):
    """Register the event."""
    app.connect("html-page-context", _page, priority=890)
