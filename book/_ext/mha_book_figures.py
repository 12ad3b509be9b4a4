"""Figures for both themes: at the build, each picture of a notebook is written in dark colors too.

Black ink on white becomes light ink on the ground of the dark theme, and what stood out from white
stands out from that ground: a map of weights is bright where it was dark. Only the colors of the
book's palette have twins of their own, brighter than the rule for all others makes them.

Both forms stand on the page and the theme shows one. They have the size they were drawn for, 96
pixels an inch. A phone shows them as wide as it is where their smallest label is ``FITTING`` high
then; wider ones get smaller until it is ``SMALLEST_LABEL`` high, and scroll in a box of their own.
"""

import base64
import functools
import io
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from mha_book.plotting import PALETTE

GROUND, INK = 0x12, 0xEC  # grays of the dark theme: its background; what black becomes
SMALLEST_LABEL, FITTING = 9.0, 7.0  # pixels
DARK = dict(
    zip(
        (color.lower() for color in PALETTE),
        ("#3d93dc", "#ee7733", "#12b886", "#db8bb8", "#f0b429", "#8fd0f7", "#ececec"),
        strict=True,
    )
)
"""Colors of the palette -> what they are in the dark."""

_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
_COLOR = re.compile(r'\b((?:fill|stroke|stop-color)(?:: ?|="))(#[0-9a-f]{6})')
_EMBEDDED = re.compile(r"data:image/png;base64,([^\"']*)")
_GLYPHS = re.compile(r" scale\(([\d.]+) -\1\)")  # of a text, in hundreds of points
_LENGTHS = re.compile(r'<svg\b[^>]*? width="([\d.]+)pt" height="([\d.]+)pt"')
_IMAGE = re.compile(r'<img\b[^>]*?\bsrc="([^"]*)"[^>]*>')
_CLASSES = re.compile(r'\bclass="([^"]*)" ?')
_STYLE = re.compile(r'\bstyle="[^"]*" ?')


def _linear(colors: np.ndarray) -> np.ndarray:
    colors = np.asarray(colors) / 255
    return np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)


PHONE = 350  # pixels that a picture has there
WHOLE = (
    '<label class="figure-whole d-print-none"><input type="checkbox" autocomplete="off"/> '
    "the whole picture, smaller</label>"
)
"""Below a picture that scrolls on a phone."""


def dark_colors(colors: np.ndarray) -> np.ndarray:
    """Return colors ``(n, 3)`` that stand out from dark ground as these do from white, of one hue.

    Those of the palette become their twins. Else, with contrasts as WCAG 2 has them: a color whose
    contrast to white is a share x of black's, on a logarithmic scale, gets the share x^0.8 of what
    the ink has to the ground. Faint tints so get a little more than they had, since the eye tells
    dark shades apart less well.
    """
    linear = np.maximum(_linear(colors), 1e-6)
    before = linear @ _LUMINANCE
    ground, ink = _linear(np.array([GROUND, INK]))
    share = np.log(1.05 / (before + 0.05)) / np.log(1.05 / 0.05)
    after = (ground + 0.05) * ((ink + 0.05) / (ground + 0.05)) ** share.clip(0, 1) ** 0.8 - 0.05
    # As bright as the hue can be by itself; the rest is white.
    factor = np.minimum(after / before, 1 / linear.max(-1))
    hue = linear * factor[:, None]
    white = (after - before * factor) / np.maximum(1 - before * factor, 1e-6)
    mixed = hue + (1 - hue) * white[:, None]
    shown = np.where(mixed <= 0.0031308, mixed * 12.92, 1.055 * mixed ** (1 / 2.4) - 0.055)
    result = np.clip(np.rint(255 * shown), 0, 255).astype(np.uint8)
    for light, dark in DARK.items():
        result[(colors == list(bytes.fromhex(light[1:]))).all(-1)] = list(bytes.fromhex(dark[1:]))
    return result


def dark_png(data: bytes) -> bytes:
    """Return a PNG in dark colors; what is transparent stays so."""
    image = Image.open(io.BytesIO(data))
    if image.mode == "P" and "transparency" not in image.info:
        palette = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)
        image.putpalette(dark_colors(palette).tobytes(), "RGB")
    else:
        pixels = np.array(image.convert("RGBA"))
        colors, places = np.unique(pixels[..., :3].reshape(-1, 3), axis=0, return_inverse=True)
        pixels[..., :3] = dark_colors(colors)[places.ravel()].reshape(*pixels.shape[:2], 3)
        image = Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "png", optimize=True)
    return file.getvalue()


@functools.cache
def _dark_color(color: str) -> str:
    return f"#{dark_colors(np.array([[*bytes.fromhex(color[1:])]]))[0].tobytes().hex()}"


def dark_svg(text: str) -> str:
    """Return an SVG in dark colors: what is filled and drawn, and the pictures in it."""

    def picture(match: re.Match[str]) -> str:
        data = dark_png(base64.b64decode(match[1]))
        return f"data:image/png;base64,{base64.b64encode(data).decode()}"

    # What names no color of its own is black: it takes what it finds around it.
    text = text.replace("<svg ", f'<svg fill="#{INK:02x}{INK:02x}{INK:02x}" ', 1)
    head, rest = text[: text.index(">")], text[text.index(">") :]
    return head + _EMBEDDED.sub(picture, _COLOR.sub(lambda m: m[1] + _dark_color(m[2]), rest))


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
        width, height = struct.unpack(">II", data[16:24])
        return width * 96 / dots, height * 96 / dots, label * 4 / 3
    text = data.decode()
    lengths = _LENGTHS.search(text)
    if not lengths:
        return None
    labels = [100 * float(size) for size in _GLYPHS.findall(text)]
    width, height, label = float(lengths[1]), float(lengths[2]), min(labels, default=0.0)
    return width * 4 / 3, height * 4 / 3, label * 4 / 3


def themed(body: str, sources: Mapping[str, Path], folder: Path) -> str:
    """Return the text of a page with each picture in both forms; write the dark ones.

    ``sources`` has the file of each picture by its name in ``folder``, that of the built pictures.
    """

    def both(match: re.Match[str]) -> str:
        tag, name = match[0], Path(match[1]).name
        if name not in sources or not sources[name].is_file():
            return tag
        data = sources[name].read_bytes()
        if (known := facts(data)) is None:
            return tag
        width, height, label = known
        least = min(width, width * FITTING / label) if label else 0
        least = least if least <= PHONE else min(width, width * SMALLEST_LABEL / label)
        dark_name = f"{Path(name).stem}-dark{Path(name).suffix}"
        folder.mkdir(parents=True, exist_ok=True)
        is_svg = name.endswith(".svg")
        made = dark_svg(data.decode()).encode() if is_svg else dark_png(data)
        (folder / dark_name).write_bytes(made)
        found = _CLASSES.search(tag)
        classes = f"{found[1]} " if found else ""
        rest = _STYLE.sub("", _CLASSES.sub("", tag))[len("<img ") :]
        size = f'width="{width:.0f}" height="{height:.0f}"'
        images = (
            f'<img class="{classes}only-light" {size} {rest}'
            f'<img class="{classes}only-dark" loading="lazy" {size} {rest.replace(name, dark_name)}'
        )
        scroll = f'<span class="figure-scroll" style="--least: {least:.0f}px">{images}</span>'
        return scroll + (WHOLE if least > PHONE else "")

    return _IMAGE.sub(both, body)


def _page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    if app.builder.name in ("html", "dirhtml") and "_images/" in context.get("body", ""):
        sources = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}
        folder = Path(app.outdir, app.builder.imagedir)
        context["body"] = themed(context["body"], sources, folder)


def setup(app):
    """Register the event."""
    app.connect("html-page-context", _page, priority=890)  # before others size all images
