"""Draw the picture of the README: three tasks in one pass through one frozen base, and their three small files.

python docs/figures/draw_overview.py    # writes overview.svg and overview.png beside this file
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Polygon

INK, GREY, PALE, PAPER = "#22303c", "#66727d", "#e6eaee", "#ffffff"
LAYERS = 4  # drawn; their number stands for all
LEFT, TOKEN, GAP = 2.95, 0.44, 0.34  # where tokens begin, the width of one, the space between segments


@dataclass(frozen=True)
class Task:
    name: str
    method: str
    size: str
    colour: str
    rows: tuple[tuple[str, int, str], ...]  # text, tokens drawn, answer


TASKS = (
    Task(
        "topic", "houlsby-64", "2.4 MB", "#1f77b4", (("the page is blank", 5, "technical"), ("refund me", 3, "billing"))
    ),
    Task("tone", "houlsby-16", "0.7 MB", "#d9772b", (("fix it! now!", 4, "angry"),)),
    Task("urgent", "lora-8", "0.3 MB", "#2a9d72", (("no hurry, thanks", 5, "no"),)),
)  # fmt: skip


def box(ax: Axes, x: float, y: float, width: float, height: float, colour: str, *, edge: str = "none") -> None:
    style = f"round,pad=0,rounding_size={min(width, height, 0.5) * 0.22}"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor=edge, linewidth=1.2))


def arrow(ax: Axes, x: float, top: float, bottom: float, colour: str) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (x, bottom), (x, top), arrowprops=style)


def file_icon(ax: Axes, x: float, y: float, colour: str) -> None:
    """A sheet with a folded corner, 0.5 wide and 0.62 high."""
    fold = 0.16
    corners = [(x, y), (x + 0.5, y), (x + 0.5, y + 0.62 - fold), (x + 0.5 - fold, y + 0.62), (x, y + 0.62)]
    ax.add_patch(Polygon(corners, closed=True, facecolor=colour, edgecolor="none"))
    corner = [(x + 0.5 - fold, y + 0.62), (x + 0.5 - fold, y + 0.62 - fold), (x + 0.5, y + 0.62 - fold)]
    ax.add_patch(Polygon(corner, closed=True, facecolor=PAPER, alpha=0.55, edgecolor="none"))
    for line in range(3):
        ax.plot([x + 0.1, x + 0.4], [y + 0.14 + 0.11 * line] * 2, color=PAPER, linewidth=1.3, solid_capstyle="round")


def draw() -> plt.Figure:
    figure, ax = plt.subplots(figsize=(12.4, 6.0))
    figure.patch.set_facecolor(PAPER)
    ax.set_xlim(0, 15.8)
    ax.set_ylim(0.2, 7.2)
    ax.set_aspect("equal")
    ax.axis("off")

    tokens_y, base_top, base_bottom, answers_y = 6.0, 5.45, 1.55, 0.45
    segments = [(task, *row) for task in TASKS for row in task.rows]
    width = sum(tokens for _, _, tokens, _ in segments) * TOKEN + GAP * (len(segments) - 1)
    right = LEFT + width

    # The frozen base: one box, with its layers in grey over the whole width.
    box(ax, LEFT - 0.3, base_bottom, width + 0.6, base_top - base_bottom, "#f4f6f8", edge="#b8c2cc")
    pitch = (base_top - base_bottom - 0.3) / LAYERS
    layers = [base_top - 0.15 - pitch * (i + 1) + 0.12 for i in range(LAYERS)]
    for y in layers:
        box(ax, LEFT - 0.15, y, width + 0.3, pitch - 0.2, PALE)

    x = LEFT
    for task, text, tokens, answer in segments:
        span = tokens * TOKEN
        middle = x + span / 2
        ax.text(middle, tokens_y + 0.66, f"“{text}”", ha="center", va="bottom", fontsize=10, color=INK, style="italic")
        for i in range(tokens):
            box(ax, x + i * TOKEN + 0.03, tokens_y, TOKEN - 0.06, 0.42, task.colour)
        arrow(ax, middle, tokens_y - 0.08, base_top + 0.02, task.colour)
        for y in layers:  # a small piece of the task, let into every layer
            box(ax, x + 0.05, y + (pitch - 0.2) / 2 - 0.13, span - 0.1, 0.26, task.colour)
        arrow(ax, middle, base_bottom - 0.02, answers_y + 0.56, task.colour)
        box(ax, middle - 0.62, answers_y, 1.24, 0.48, PAPER, edge=task.colour)
        ax.text(middle, answers_y + 0.235, answer, ha="center", va="center", fontsize=10.5, color=INK)
        x += span + GAP

    # What stands at the left: the words for the rows.
    for y, title, note in (
        (tokens_y + 0.2, "one packed batch", "segments of three\ntasks, no padding"),
        ((base_top + base_bottom) / 2, "one frozen base", "computed once\nfor all tokens"),
        (answers_y + 0.24, "answers", "by each task's head"),
    ):
        ax.text(0.0, y + 0.07, title, ha="left", va="bottom", fontsize=11, weight="bold", color=INK)
        ax.text(0.0, y + 0.0, note, ha="left", va="top", fontsize=9, color=GREY, linespacing=1.25)

    # The bank at the right: a file for each task, in the colour of its pieces.
    files = right + 1.15
    ax.text(files, base_top + 0.14, "a bank: one small file a task", ha="left", fontsize=11, weight="bold", color=INK)
    for i, task in enumerate(TASKS):
        y = base_top - 1.05 - 1.02 * i
        file_icon(ax, files, y, task.colour)
        ax.text(files + 0.68, y + 0.4, task.name, ha="left", va="center", fontsize=11, weight="bold", color=task.colour)
        ax.text(files + 0.68, y + 0.13, f"{task.method}, {task.size}", ha="left", va="center", fontsize=9.5, color=GREY)
    y = base_top - 1.05 - 1.02 * len(TASKS) + 0.18
    ax.text(files, y + 0.2, "base: 22.7 million parameters,", ha="left", va="center", fontsize=9.5, color=GREY)
    ax.text(files, y - 0.06, "91 MB, never written to", ha="left", va="center", fontsize=9.5, color=GREY)
    style = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    middle = base_top - 1.05 - 1.02 + 0.31
    ax.annotate("", (right + 0.36, middle), (files - 0.14, middle), arrowprops=style)
    ax.text((right + files + 0.22) / 2, middle + 0.1, "slots", ha="center", va="bottom", fontsize=9, color=GREY)
    return figure


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "intarsia"  # the same bytes each time
    figure = draw()
    folder = Path(__file__).parent
    figure.savefig(folder / "overview.svg", bbox_inches="tight", pad_inches=0.2, metadata={"Date": None})
    figure.savefig(folder / "overview.png", bbox_inches="tight", pad_inches=0.2, dpi=110)


if __name__ == "__main__":
    main()
