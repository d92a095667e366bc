"""A self-contained HTML page with text, tables and inline SVG figures."""

from __future__ import annotations

import html
import io
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intarsia.errors import check_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe and Ito: distinguishable for colour-blind readers and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } p { max-width: 52rem; }
table { border-collapse: collapse; max-width: 100%; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th:first-child, td:first-child, th.left, td.left { text-align: left; }
td { white-space: nowrap; } td.left:not(:first-child) { white-space: normal; }
tfoot tr:first-child td { border-top: 2px solid #888; }
figure { margin: 1rem 0; } figcaption { color: #555; font-size: 0.9rem; }
svg { max-width: 100%; height: auto; } code { background: #f4f4f4; padding: 0 0.2rem; }
p.note { color: #555; font-size: 0.9rem; margin: 0.3rem 0; }
.good { color: #00735c; font-weight: 600; } .bad { color: #b3261e; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #fff; } }
"""


class Page:
    """An HTML page that is built part by part, from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str, kind: str = "") -> None:
        css = f' class="{kind}"' if kind else ""
        self.parts.append(f"<p{css}>{html.escape(text)}</p>")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        left: Sequence[int] = (0,),
        summary_rows: int = 0,
    ) -> None:
        """Add a table. `left` lists the left-aligned columns. The last `summary_rows` rows become the footer."""

        def cell(tag: str, i: int, value: str) -> str:
            css = ' class="left"' if i in left else ""
            return f"<{tag}{css}>{html.escape(value)}</{tag}>"

        head = "".join(cell("th", i, c) for i, c in enumerate(columns))
        lines = ["<tr>" + "".join(cell("td", i, v) for i, v in enumerate(row)) + "</tr>" for row in rows]
        count = len(lines) - summary_rows
        body, foot = "".join(lines[:count]), "".join(lines[count:])
        foot = f"<tfoot>{foot}</tfoot>" if foot else ""
        self.parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table>")

    def figure(self, figure: Figure, caption: str) -> None:
        self.parts.append(f"<figure>{_inline(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>")

    def render(self) -> str:
        title = html.escape(self.title)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
            f"<body><h1>{title}</h1>{''.join(self.parts)}</body></html>\n"
        )


def svg(figure: Figure) -> bytes:
    """Return the SVG of a figure. Equal figures give equal bytes."""
    import matplotlib

    output = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "intarsia"}):  # without it, element ids are random
        figure.savefig(output, format="svg", bbox_inches="tight", metadata={"Date": None})
    return output.getvalue()


def _inline(figure: Figure) -> str:
    text = svg(figure).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)  # contains URLs, and browsers ignore it
    # A page has several figures: their element ids must not collide.
    prefix = f"f{zlib.crc32(text.encode())}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}", text)


def new_figure(width: float = 7.0, height: float = 3.2) -> Figure:
    """Return an empty figure in the common style. Needs no window system."""
    check_extra("lab", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tidy(axes: object) -> None:
    """Hide the top and right spines, and draw a light grid."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
