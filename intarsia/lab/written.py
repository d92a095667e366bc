"""A comparison on disk: comparison.json, tradeoff.png, and both in one page, comparison.html."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.lab.comparison_rows import baseline_row, comparison_columns, comparison_notes, comparison_rows
from intarsia.lab.figures import tradeoff
from intarsia.lab.report import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from intarsia.lab.comparison import Comparison


FILES = ("comparison.json", "tradeoff.png", "comparison.html")


def write(found: Comparison, folder: str | Path) -> None:
    """Write all three."""
    image, figure = io.BytesIO(), tradeoff(found)
    figure.savefig(image, format="png", dpi=150)
    known = json.dumps(found.to_dict(), indent=1, ensure_ascii=False).encode()
    for name, content in zip(FILES, (known, image.getvalue(), page(found, figure).encode()), strict=True):
        files.replace(Path(folder) / name, [content])


def page(found: Comparison, figure: Figure) -> str:
    known = found.provenance
    data, encoder, machine = known["data"], known["encoder"], known["machine"]
    made = Page("Methods compared on one task")
    made.text(
        f"{_name(data)}: {data['rows']['train']:,} training, {data['rows']['dev']:,} validation and "
        f"{data['rows']['test']:,} test rows ({data.get('split', 'as given')}), the same for all runs. Each method was "
        f"trained with {found.seeds} seed{'s' * (found.seeds > 1)} over {encoder['name']} "
        f"({encoder['parameters']:,} parameters); the best epoch was chosen on validation."
    )
    made.figure(
        figure,
        "Test score over trained parameters. Where points would hide each other they stand a little apart.",
    )
    rows = comparison_rows(found) + ([baseline_row(found)] if found.baseline is not None else [])
    made.table(comparison_columns(found), rows)
    for note in comparison_notes(found):
        made.text(note)
    made.heading("How it was made")
    facts = {
        "command": known["command"] or "from Python",
        "seeds": ", ".join(str(seed) for seed in known["seeds"]),
        "settings": _options(known["settings"]) + "; the rest is each method's own recipe",
        "data": f"{_name(data)}, SHA-256 of its rows {data['sha256']}",
        "encoder": f"{encoder['name']}, fingerprint {encoder['fingerprint']}",
        "versions": _options(known["versions"]),
        "machine": _options(machine),
        "date": known["created"],
    }
    made.table(["", ""], [[name, value] for name, value in facts.items()], left=(0, 1))
    return made.render()


def _name(data: dict[str, Any]) -> str:
    return str(data.get("path") or data.get("hub") or data.get("source") or "data from Python")


def _options(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
