"""Figures of attention: the map of one head, grids of several, and atlases of all in a model.

In every map a row is a query and a column a key: row ``i`` shows how query ``i`` shares its
attention of 1 among the keys. The darker a cell, the greater the weight. The palettes are readable
with every common kind of colour blindness, and in grey.

Shapes: ``N`` heads of a layer, ``M`` heads of any number of layers, ``T`` queries, ``S`` keys. Of
the package this module imports the checks alone.
"""

import base64
import html
import io
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mha_book._checks import check

__all__ = [
    "PALETTE",
    "WEIGHT_COLORS",
    "attention_map",
    "head_atlas",
    "head_grid",
    "layer_diagram",
    "table",
    "use_book_style",
]

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, to_rgb
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    message = "matplotlib is not installed; install it with\n  pip install matplotlib"
    raise ModuleNotFoundError(message, name="matplotlib") from None


PALETTE = ("#0068A8", "#BF4700", "#00976E", "#C96FA0", "#C58900", "#3B99DB", "#000000")
"""Colours for things without an order: Okabe and Ito's, darkened to a contrast of 3 on white."""

_LIGHT_TO_DARK = "#f4f9f9 #b5e4e6 #79cdd4 #36b4cb #0098bf #0079ac #2f5b8c #344164 #2b2a3a"
WEIGHT_COLORS = LinearSegmentedColormap.from_list("mha_weights", _LIGHT_TO_DARK.split())
"""Colours for weights: near white is 0, near black is 1, lightness falls in equal steps."""

_SPECIAL_COLOR = "#A04000"
_FAINT = "#E3E6EA"
# In the atlas, in sides of a map: between maps, below one, above a group.
_GAP, _LABEL, _HEADER = 0.14, 0.44, 0.72
_PIXELS_PER_INCH = 192  # twice those of a page
_WIDEST = 7.6  # inches: what a page of the book shows without making the labels too small
_COLUMN, _WIDE, _PHONE = 480 / 72, 558 / 72, 360 / 72  # inches: widths of figures on a page
_LABELS = 11  # points, of every label
_LARGE = 50_000  # bytes, up to which a figure is stored as SVG


def use_book_style() -> None:
    """Set the look of the book's figures: a light card, sizes that survive a phone, no chance.

    Call it once at the top of a chapter. Two runs then draw the same picture: the font comes with
    the package, and nothing depends on the time. A notebook shows and stores figures as
    ``figure_data`` gives them.

    Example:
        >>> with plt.rc_context():
        ...     use_book_style()
        ...     plt.rcParams["savefig.transparent"]
        False
    """
    for file in sorted(Path(__file__).with_name("fonts").glob("*.ttf")):
        fontManager.addfont(file)
    plt.style.use(Path(__file__).with_name("book.mplstyle"))
    plt.rc("axes", prop_cycle=plt.cycler(color=PALETTE))
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        # The inline backend registers its own way, a small png, when it is first imported.
        import matplotlib_inline.backend_inline  # noqa: F401

        shell.display_formatter.mimebundle_formatter.for_type(Figure, figure_data)
        shell.display_formatter.formatters["image/png"].pop(Figure, None)


def figure_data(figure: Figure) -> dict[str, str]:
    """Return what a notebook stores of a figure: SVG, or PNG of twice the pixels for a large one.

    One with a constrained layout gets one of two widths, and its SVG has in a comment the same
    figure as narrow as a phone. All labels get one size, and stand out from white; they are
    outlines, so that they look the same without the font. The PNG has a palette of 256 colours,
    and tells how large its smallest label is, which can be read off an SVG. The SVG is text under
    ``image/svg+xml``, the PNG in base 64 under ``image/png``.
    """
    check(isinstance(figure, Figure), "figure", "a Figure", type(figure).__name__)
    for label in figure.findobj(Text):
        color = np.array(to_rgb(label.get_color()))
        while 0.14 < color**2.2 @ (0.21, 0.72, 0.07) < 0.6:
            color *= 0.95
        label.set(fontsize=_LABELS, color=color)
    engine, across = figure.get_layout_engine(), figure.get_figwidth()
    is_compressed = getattr(engine, "_compress", False)
    is_fitted = isinstance(engine, ConstrainedLayoutEngine) and not is_compressed
    width = (_WIDE if across > 7.1 else _COLUMN) if is_fitted else across
    svg = _saved(figure, "svg", width)
    shown = {"image/svg+xml": svg.decode()}
    if len(svg) > _LARGE and len(png := _saved(figure, "png", width)) < len(svg):
        text = PngInfo()
        text.add_text("smallest label", f"{_LABELS} pt")
        png = _few_colors(png, dpi=(_PIXELS_PER_INCH,) * 2, pnginfo=text)
        shown = {"image/png": base64.b64encode(png).decode()}
    elif is_fitted and width == _COLUMN:
        shown["image/svg+xml"] += f"<!--narrow {_saved(figure, 'svg', _PHONE).decode()}-->"
    figure.set_figwidth(across)
    return shown


def _saved(figure: Figure, form: str, width: float) -> bytes:
    """Return a figure as a file, as wide as it is told where its content nearly is."""
    figure.set_figwidth(width)
    figure.draw_without_rendering()
    box = figure.get_tightbbox().padded(0.04)
    if box.width > width - 0.4:
        box = Bbox([[min(0, box.x0), box.y0], [max(width, box.x1), box.y1]])
    file = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if form == "svg" else {}
    # A figure without a layout would be given that of the style after it was saved once.
    with plt.rc_context({"figure.constrained_layout.use": False}):
        figure.savefig(file, format=form, metadata=nothing, dpi=_PIXELS_PER_INCH, bbox_inches=box)
    if form == "png":
        return file.getvalue()
    svg = " ".join(re.sub("<!--.*?-->", "", file.getvalue().decode()).split())
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"(?<![\d.])([1-9]\d*\.\d\d)\d+", r"\1", svg)  # a hundredth of a point is enough
    return re.sub(
        r"(?<=data:image/png;base64,)[^\"]*",
        lambda found: base64.b64encode(_few_colors(base64.b64decode(found[0]))).decode(),
        svg,
    ).encode()


def _few_colors(png: bytes, **options: Any) -> bytes:
    """Return a PNG with a palette of 256 colours, if nothing of it is transparent."""
    image, file = Image.open(io.BytesIO(png)), io.BytesIO()
    if image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
        return png
    few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True, **options)
    return file.getvalue()


def attention_map(
    weights: Float[Any, "T S"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    title: str | None = None,
    vmax: float | int = 1.0,
    colorbar: bool = True,
) -> Axes:
    """Draw the weights of one head: queries down, keys across.

    Args:
        weights: ``(T, S)``, numbers from 0 to 1; any array that NumPy can read.
        query_tokens: ``T`` labels. A special token, such as ``[CLS]``, is set in another colour.
        key_tokens: ``S`` labels; None for those of the queries.
        ax: where to draw; None for a figure of its own.
        title: above the map.
        vmax: the weight that gets the darkest colour; the bar says if there are greater ones.
        colorbar: whether to draw the bar that says what the colours mean.

    Returns:
        The axes; their ``figure`` is the picture.

    Example:
        >>> ax = attention_map(np.eye(2), ["to", "be"], title="Each token to itself")
        >>> ax.get_xlabel(), [label.get_text() for label in ax.get_yticklabels()]
        ('key (attended to)', ['to', 'be'])
        >>> plt.close(ax.figure)
    """
    array = _check_weights(weights, "(T, S)", vmax)
    is_axes = ax is None or isinstance(ax, Axes)
    check(is_axes, "ax", "Axes, one of figure.subplots(…), or None", type(ax).__name__)
    labels = _labels(array, query_tokens, key_tokens)
    cell = min(0.34, (_WIDEST - 2.0) / array.shape[-1])  # inches
    if ax is None:
        width, height = (cell * size for size in reversed(array.shape))
        _, ax = plt.subplots(figsize=(width + 2.0, max(height, 1.6) + 1.2), layout="compressed")
    image = _draw(ax, array, vmax, labels)
    if title is not None:
        ax.set_title(title)
    if colorbar:
        _add_bar(image, [ax], array, vmax)
    return ax


def head_grid(
    weights: Float[Any, "N T S"],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    *,
    columns: int = 4,
    titles: Sequence[str] | None = None,
    vmax: float | int = 1.0,
) -> Figure:
    """Draw the weights of several heads side by side, with one scale of colours for all.

    Args:
        weights: ``(N, T, S)``, numbers from 0 to 1, never averaged over heads.
        query_tokens: ``T`` labels, written at the left of each row of maps.
        key_tokens: ``S`` labels, written below each column of maps; None for those of the queries.
        columns: maps side by side.
        titles: ``N`` titles; None for "head 0", "head 1" and so on.
        vmax: the weight that gets the darkest colour; the bar says if there are greater ones.

    Returns:
        The figure. In a notebook, assign it: a figure that is the last expression of a cell is
        shown twice.

    Example:
        >>> figure = head_grid(np.full((3, 2, 2), 0.5), ["to", "be"], columns=2)
        >>> [ax.get_title() for ax in figure.axes[:3]]
        ['head 0', 'head 1', 'head 2']
        >>> plt.close(figure)
    """
    array = _check_weights(weights, "(N, T, S)", vmax)
    row_labels, column_labels = _labels(array, query_tokens, key_tokens)
    is_count = isinstance(columns, int) and columns > 0
    check(is_count, "columns", "a positive integer", repr(columns))
    number = array.shape[0]
    names = [f"head {h}" for h in range(number)] if titles is None else list(titles)
    check(len(names) == number, "titles", f"{number} titles, axis N of weights", len(names))
    columns = min(columns, number)
    rows = math.ceil(number / columns)
    cell = min(0.24, (_WIDEST - 1.7) / columns / array.shape[-1])
    height, width = (cell * size for size in array.shape[1:])
    figure, grid = plt.subplots(
        rows,
        columns,
        squeeze=False,
        layout="compressed",
        figsize=(columns * width + 1.7, rows * (max(height, 0.6) + 0.3) + 1.2),
    )
    maps = list(grid.flat)
    for position, ax in enumerate(maps):
        if position >= number:
            ax.set_axis_off()
            continue
        at_left, at_bottom = position % columns == 0, position + columns >= number
        labels = (row_labels if at_left else None, column_labels if at_bottom else None)
        image = _draw(ax, array[position], vmax, labels)
        ax.set_title(names[position], pad=4)
    _add_bar(image, maps, array, vmax)
    return figure


def head_atlas(
    weights: Float[Any, "M T S"],
    titles: Sequence[str],
    groups: Mapping[str, Sequence[int]],
    *,
    columns: int = 10,
    width: float | int = 5.0,
    vmax: float | int = 1.0,
) -> Figure:
    """Draw a small map of every head, group under group, with a header over each.

    In each map queries go down and keys across, as in :func:`attention_map`.

    Args:
        weights: ``(M, T, S)``, numbers from 0 to 1.
        titles: ``M`` short names, written below the maps.
        groups: by header the numbers of its heads, in the order in which they are drawn; a group
            without heads is left out.
        columns: maps side by side.
        width: of the figure, in inches.
        vmax: the weight that gets the darkest colour; greater ones look the same.

    Returns:
        The figure; its height follows from the number of maps.

    Example:
        >>> maps = np.full((3, 2, 2), 0.5)
        >>> figure = head_atlas(maps, ["0.0", "0.1", "0.2"], {"all": [2, 0, 1]}, columns=2)
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['all (3)', '0.2', '0.0', '0.1']
        >>> plt.close(figure)
    """
    array = _check_weights(weights, "(M, T, S)", vmax)
    number, queries, keys = array.shape
    check(len(titles) == number, "titles", f"{number} titles, axis M of weights", len(titles))
    check(isinstance(columns, int) and columns > 0, "columns", "a positive integer", columns)
    is_named = isinstance(groups, Mapping)
    check(is_named, "groups", "a Mapping from headers to heads", type(groups).__name__)
    named = [head for heads in groups.values() for head in heads]
    inside = all(0 <= head < number for head in named)
    check(bool(named) and inside, "groups", f"heads from 0 to {number - 1}", named)
    step = 1 + _GAP
    places, top = [], 0.0  # of each map: head, left, top
    headers = []
    for name, heads in groups.items():
        if not len(heads):
            continue
        headers.append((f"{name} ({len(heads)})", top))
        top += _HEADER
        for n, head in enumerate(heads):
            row, column = divmod(n, columns)
            places.append((head, column * step, top + row * (step + _LABEL)))
        top += -(-len(heads) // columns) * (step + _LABEL)
    across = columns * step - _GAP
    figure = plt.figure(figsize=(width, width * top / across), layout="none")
    ax = figure.add_axes((0.01, 0.0, 0.98, 1.0))
    ax.set(xlim=(0, across), ylim=(top, 0))
    ax.set_axis_off()
    for text, y in headers:
        ax.text(0, y + _HEADER - 0.12, text, fontweight="bold", va="bottom")
    # One picture of all maps: hundreds of them would each take their time.
    fine = max(queries, keys)
    canvas = np.full((round(top * fine), round(across * fine)), np.nan)
    for head, left, upper in places:
        y, x = round(upper * fine), round(left * fine)
        rows, cells = np.arange(fine) * queries // fine, np.arange(fine) * keys // fine
        canvas[y : y + fine, x : x + fine] = array[head][rows][:, cells]
        ax.text(left + 0.5, upper + 1.03, titles[head], ha="center", va="top")
    extent = (0, canvas.shape[1] / fine, canvas.shape[0] / fine, 0)
    colors = WEIGHT_COLORS.with_extremes(bad="white")
    shown: Any = {"vmin": 0.0, "vmax": vmax, "interpolation": "nearest", "aspect": "auto"}
    ax.imshow(canvas, extent=extent, cmap=colors, **shown)
    ax.set(xlim=(0, across), ylim=(top, 0))
    return figure


def _draw(ax: Axes, array: np.ndarray, vmax: float | int, labels: tuple[Any, Any]) -> Any:
    """Draw one map; where the labels of an axis are None, the axis stays bare."""
    image = ax.imshow(array, cmap=WEIGHT_COLORS, vmin=0.0, vmax=vmax, interpolation="nearest")
    meanings = ("query (attends)", "key (attended to)")
    for axis, length, tokens, meaning in zip(
        (ax.yaxis, ax.xaxis), array.shape, labels, meanings, strict=True
    ):
        axis.set_ticks(np.arange(length), [""] * length if tokens is None else tokens)
        axis.set_ticks(np.arange(1, length) - 0.5, minor=True)
        axis.set_label_text("" if tokens is None else meaning)
        for label in axis.get_ticklabels():
            label.set(parse_math=False)
            if label.get_text()[:1] + label.get_text()[-1:] in ("[]", "<>"):
                label.set(color=_SPECIAL_COLOR, fontstyle="italic")
    ax.grid(which="minor", color=_FAINT, linewidth=0.5)
    ax.grid(which="major", visible=False)
    ax.tick_params(which="both", length=0)
    ax.tick_params(axis="x", rotation=90)
    ax.spines[:].set(visible=True, color="#888888", linewidth=0.6)
    return image


def _add_bar(image: Any, axes: list[Axes], array: np.ndarray, vmax: float | int) -> None:
    figure = axes[0].figure
    extend = "max" if array.max() > vmax + 1e-6 else "neither"
    bar = figure.colorbar(image, ax=axes, extend=extend, fraction=0.05, shrink=0.8, aspect=22)
    bar.set_label("attention weight")
    bar.outline.set_visible(False)


def _labels(
    array: np.ndarray, query_tokens: Sequence[str], key_tokens: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Check the labels of both axes; return them as they are shown."""
    keys = query_tokens if key_tokens is None else key_tokens
    keys_name = "query_tokens (for the keys too)" if key_tokens is None else "key_tokens"
    for tokens, name, axis in ((query_tokens, "query_tokens", -2), (keys, keys_name, -1)):
        is_list = not isinstance(tokens, str) and all(isinstance(token, str) for token in tokens)
        check(is_list, name, "a list of strings", repr(tokens))
        size = array.shape[axis]
        what = f"{size} labels, one for each entry of axis {'TS'[axis]} of weights"
        check(len(tokens) == size, name, what, len(tokens))
    return [_shown(token) for token in query_tokens], [_shown(token) for token in keys]


def _shown(token: str) -> str:
    """Make white space visible, and cut a token that is too long for a label."""
    shown = token.translate({ord(" "): "␣", ord("\n"): "⏎", ord("\t"): "⇥"})
    return shown if len(shown) <= 16 else shown[:15] + "…"


def _check_weights(weights: Any, axes: str, vmax: float | int) -> np.ndarray:
    array = np.asarray(weights)
    rank = axes.count(",") + 1
    what = f"axes {axes}, that is rank {rank}"
    check(array.ndim == rank, "weights", what, f"rank {array.ndim}, shape {array.shape}")
    check(array.size > 0, "weights", f"axes {axes}, none of them empty", f"shape {array.shape}")
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    check(is_float, "weights", "a floating-point dtype", array.dtype)
    array = array.astype(np.float64)
    in_range = bool(np.all((array >= 0) & (array <= 1.01)))  # False for NaN
    check(in_range, "weights", "numbers from 0 to 1", f"{array.min()} to {array.max()}")
    check(isinstance(vmax, int | float) and 0 < vmax <= 1, "vmax", "a number in (0, 1]", vmax)
    return array


def layer_diagram(num_tokens: int = 10, d_model: int = 64, num_heads: int = 8) -> Figure:
    """Draw multi-head attention from the tokens to the output, with a shape at every arrow.

    Queries, keys, values and head outputs have the colors of ``PALETTE[:4]``, in that order.

    Args:
        num_tokens: ``T``, the length of the sequence.
        d_model: ``D``, a multiple of ``num_heads``.
        num_heads: ``N``; the first head is drawn, the others stand behind it.

    Returns:
        The figure, narrow enough for a phone.

    Example:
        >>> plt.close(layer_diagram())
    """
    sizes = {"num_tokens": num_tokens, "d_model": d_model, "num_heads": num_heads}
    for name, size in sizes.items():
        check(isinstance(size, int) and size > 0, name, "a positive integer", size)
    check(d_model % num_heads == 0, "d_model", f"a multiple of num_heads = {num_heads}", d_model)
    return _LayerDiagram(num_tokens, d_model, num_heads).figure


_Number = float | int


class _LayerDiagram:
    """The drawing of :func:`layer_diagram`, from top to bottom on a sheet of 108 by 122."""

    def __init__(self, num_tokens: int, d_model: int, num_heads: int) -> None:
        self.figure = plt.figure(figsize=(5.05, 5.75), layout="none")
        self.ax = self.figure.add_axes((0, 0, 1, 1))
        self.ax.set(xlim=(0, 108), ylim=(125.5, 3))
        self.ax.axis("off")
        self.num_heads = num_heads
        whole, head = f"({num_tokens}, {d_model})", f"({num_tokens}, {d_model // num_heads})"
        self.strip(27, 4, 54, "input, one row for each token", whole)
        self.projections(whole)
        self.heads(num_tokens, head)
        self.arrow((54, 96), (54, 101))
        self.text(56, 98.2, f"({num_heads}, {head[1:]}", ha="left")
        self.blocks(54, 101, 48, PALETTE[3])
        self.text(28, 103.8, "Concat", ha="right", weight="bold")
        self.text(79.5, 103.8, whole, ha="left")
        self.arrow((54, 107), (54, 109.6))
        self.box(54, 109.6, "$W_O$", "#444444")
        self.arrow((54, 116.2), (54, 119.2))
        self.strip(27, 119.2, 54, "output, one row for each token", whole)

    def text(self, x: _Number, y: _Number, text: str, **options: Any) -> None:
        look: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6, "fontsize": _LABELS}
        self.ax.text(x, y, text, **look | options)

    def arrow(
        self, start: tuple[_Number, _Number], end: tuple[_Number, _Number], **options: Any
    ) -> None:
        look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 11, "lw": 1.5}
        look |= {"shrinkA": 0, "shrinkB": 0, "color": "#555555", "zorder": 5} | options
        self.ax.add_patch(FancyArrowPatch(start, end, **look))

    def matrix(
        self, x: _Number, y: _Number, w: _Number, h: _Number, color: str, strength: _Number
    ) -> None:
        for face, alpha, edge in (("white", 1, "none"), (color, strength, "none")):
            patch = Rectangle((x, y), w, h, facecolor=face, alpha=alpha, edgecolor=edge, zorder=5)
            self.ax.add_patch(patch)
        outline = Rectangle((x, y), w, h, fill=False, edgecolor=color, lw=1.2, zorder=5)
        self.ax.add_patch(outline)

    def strip(self, x: _Number, y: _Number, w: _Number, label: str, shape: str) -> None:
        self.matrix(x, y, w, 5.6, "#555555", 0.1)
        self.text(x + w / 2, y + 2.8, label)
        self.text(x + w + 1.5, y + 2.8, shape, ha="left")

    def box(self, x: _Number, y: _Number, label: str, color: str) -> None:
        shape = "round,pad=0,rounding_size=1.6"
        dark = np.array(to_rgb(color)) * 0.8  # for white letters
        patch = FancyBboxPatch((x - 9, y), 18, 6.6, boxstyle=shape, fc=dark, ec="none", zorder=5)
        self.ax.add_patch(patch)
        self.text(x, y + 3.2, label, color="white")

    def blocks(self, x: _Number, y: _Number, width: _Number, color: str) -> None:
        """Draw a matrix as its column blocks, one a head; that of the first head is darker."""
        size = width / self.num_heads
        for n in range(self.num_heads):
            self.matrix(x - width / 2 + n * size, y, size, 5.6, color, 0.55 if n == 0 else 0.15)

    def projections(self, shape: str) -> None:
        for x, color, name in zip((20, 54, 88), PALETTE, "QKV", strict=False):
            self.arrow((54 + (x - 54) / 2, 9.6), (x, 15.6))
            self.box(x, 15.6, f"$W_{name}$", color)
            self.arrow((x, 22.2), (x, 29.6), color=color)
            self.text(x + 1.8, 25.6, shape, ha="left")
            self.blocks(x, 29.6, 26, color)
        self.text(0.5, 39.2, "split", ha="left", weight="bold")

    def heads(self, num_tokens: int, shape: str) -> None:
        for n in range(min(self.num_heads, 5) - 1, -1, -1):
            place, round_ = (11 + 1.9 * n, 49 - 1.2 * n), "round,pad=0,rounding_size=2"
            card = FancyBboxPatch(
                place, 76, 47, boxstyle=round_, fc="white", ec="#777777", zorder=3
            )
            self.ax.add_patch(card)
        times = f", × {self.num_heads}" if self.num_heads > 1 else ""
        self.text(57, 53.4, f"one head{times}", weight="bold")
        first = 13 / self.num_heads  # from the left edge of the blocks to the middle of the first
        for x, start, color, name in zip((20, 37, 79), (20, 54, 88), PALETTE, "QKV", strict=False):
            self.arrow((start - 13 + first, 35.4), (x, 57), color=color)
            self.matrix(x - 3.6, 57, 7.2, 10, color, 0.4)
            self.text(x, 62, f"${name}$")
            self.text(x, 69.6, shape)
        self.ax.plot([23.8, 33.2], [62, 62], color="#555555", lw=1.5, zorder=5)
        self.arrow((28.5, 62), (28.5, 73.2))
        scores = np.random.default_rng(3).normal(size=(num_tokens, num_tokens))
        weights = np.exp(1.6 * scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        maps = ((22, scores, "Greys", (-2, 3)), (50, weights, WEIGHT_COLORS, (0, 0.75)))
        for x, values, colors, (low, high) in maps:
            extent = (x, x + 13, 86.2, 73.2)
            options: dict[str, Any] = {"cmap": colors, "vmin": low, "vmax": high, "zorder": 5}
            self.ax.imshow(values, extent=extent, aspect="auto", **options)
            frame = Rectangle((x, 73.2), 13, 13, fill=False, edgecolor="#555555", lw=1, zorder=5)
            self.ax.add_patch(frame)
        self.text(28.5, 90.6, r"$QK^{\mathsf{T}}\,/\sqrt{d_\mathrm{head}}$")
        self.arrow((35.8, 79.7), (49.4, 79.7))
        self.text(42.5, 77.2, "softmax")
        self.text(42.5, 82.4, "each row")
        self.text(56.5, 88.6, "weights")
        self.text(56.5, 92.8, f"({num_tokens}, {num_tokens})")
        self.arrow((63.8, 79.7), (74.8, 79.7))
        self.text(69.2, 77.2, "mean")
        self.arrow((79, 71.6), (79, 75.4), color=PALETTE[2])
        self.matrix(75.4, 75.6, 7.2, 10, PALETTE[3], 0.5)
        self.text(79, 80.6, "$O$")
        self.text(79, 88.6, shape)


class table:
    """A table that a notebook shows as HTML and a terminal as text.

    Args:
        columns: header -> cells, from left to right; a number is right-aligned, text left.
        caption: one sentence above the table, or None.

    Example:
        >>> table({"model": ["A", "B"], "heads": [8, 12]})
        model  heads
        A          8
        B         12
    """

    def __init__(self, columns: Mapping[str, Sequence[object]], caption: str | None = None) -> None:
        lengths = {len(cells) for cells in columns.values()}
        check(len(lengths) == 1, "columns", "one or more of one length", sorted(lengths))
        self.caption = caption
        self.headers = list(columns)
        self.columns = [[str(cell) for cell in cells] for cells in columns.values()]
        self.right = [
            all(re.fullmatch(r"[-−+±]?[\d., ×]*\d[^A-Za-z]*|–?", cell) for cell in cells)
            for cells in self.columns
        ]

    def __repr__(self) -> str:
        lines = [self.headers, *zip(*self.columns, strict=True)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, self.right, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], kind: str, scope: str = "") -> str:
            looks = (' class="text-right"' if right else "" for right in self.right)
            joined = "".join(
                f"<{kind}{scope}{look}>{html.escape(cell, quote=False)}</{kind}>"
                for cell, look in zip(cells, looks, strict=True)
            )
            return f"<tr>{joined}</tr>"

        caption = "" if self.caption is None else f"<caption>{html.escape(self.caption)}</caption>"
        body = "".join(row(cells, "td") for cells in zip(*self.columns, strict=True))
        head = row(self.headers, "th", ' scope="col"')
        return f'<table class="table">{caption}<thead>{head}</thead><tbody>{body}</tbody></table>'
