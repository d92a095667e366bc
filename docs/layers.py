"""The layers of the package, lowest first. `tests/test_layers.py` checks the imports against this list.

python docs/layers.py           print the drawing
python docs/layers.py --write   put it into docs/concepts.md
"""

from __future__ import annotations

import sys
from pathlib import Path

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "memory", "provenance", "formatting", "local_socket", "threads", "version"),
    ("kernels",),
    ("encoder",),
    ("methods",),
    ("tasks",),
    ("exchange",),
    ("train", "serve"),
    ("display",),
    ("trackers",),
    ("bank",),
    ("sklearn",),
    ("lab", "service", "client"),
    ("cluster",),
    ("cli",),
)
APART = (("train", "serve"), ("lab", "service", "client"))  # layers whose members may not import each other

PAGE = Path(__file__).parent / "concepts.md"
BEGIN, END = "<!-- layers -->", "<!-- /layers -->"


def drawing() -> str:
    """The layers as boxes, the highest on top; members that may not import each other are separated by a bar."""
    rows = [(" | " if layer in APART else ", ").join(layer) for layer in reversed(LAYERS)]
    width = max(map(len, rows))
    edge = " +" + "-" * (width + 2) + "+"
    boxes = f"\n{edge}\n".join(f" | {row:^{width}} |" for row in rows)
    return f"{edge}\n{boxes}\n{edge}"


def block() -> str:
    """The part of the page between the two marks, with the marks."""
    return f"{BEGIN}\n```\n{drawing()}\n```\n{END}"


def page_block(text: str) -> str:
    """The block as it stands in the text of the page."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{PAGE} must contain {BEGIN} and {END} exactly once each")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(text.replace(page_block(text), block()), encoding="utf-8")
    elif not sys.argv[1:]:
        print(drawing())
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
