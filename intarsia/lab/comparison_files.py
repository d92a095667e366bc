"""The files of a comparison: comparison.json, tradeoff.png, and comparison.html with the table and the figure."""

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


def write(comparison: Comparison, folder: str | Path) -> None:
    """Write the three files of a comparison into a folder."""
    image, figure = io.BytesIO(), tradeoff(comparison)
    figure.savefig(image, format="png", dpi=150)
    stored = json.dumps(comparison.to_dict(), indent=1, ensure_ascii=False).encode()
    for name, content in zip(FILES, (stored, image.getvalue(), page(comparison, figure).encode()), strict=True):
        files.replace(Path(folder) / name, [content])


def page(comparison: Comparison, figure: Figure) -> str:
    """Return the HTML page of a comparison."""
    known = comparison.provenance
    data, encoder, machine = known["data"], known["encoder"], known["machine"]
    html = Page("Methods compared on one task")
    html.text(
        f"{_data_name(data)}: {data['rows']['train']:,} training, {data['rows']['dev']:,} validation and "
        f"{data['rows']['test']:,} test rows ({data.get('split', 'as given')}), the same for all runs. Each method was "
        f"trained with {comparison.seeds} seed{'s' * (comparison.seeds > 1)} on {encoder['name']} "
        f"({encoder['parameters']:,} parameters); the best epoch was selected on validation."
    )
    html.figure(
        figure,
        "Test score against trained parameters. Points that would overlap are moved apart slightly.",
    )
    rows = comparison_rows(comparison) + ([baseline_row(comparison)] if comparison.baseline is not None else [])
    html.table(comparison_columns(comparison), rows)
    for note in comparison_notes(comparison):
        html.text(note)
    html.heading("Provenance")
    facts = {
        "command": known["command"] or "from Python",
        "seeds": ", ".join(str(seed) for seed in known["seeds"]),
        "settings": _options(known["settings"]) + "; all other settings follow each method's own recipe",
        "data": f"{_data_name(data)}, SHA-256 of the rows {data['sha256']}",
        "encoder": f"{encoder['name']}, fingerprint {encoder['fingerprint']}",
        "versions": _options(known["versions"]),
        "machine": _options(machine),
        "date": known["created"],
    }
    html.table(["", ""], [[name, value] for name, value in facts.items()], left=(0, 1))
    return html.render()


def _data_name(data: dict[str, Any]) -> str:
    return str(data.get("path") or data.get("hub") or data.get("source") or "data from Python")


def _options(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
