"""Writing the answers of `intarsia predict`: JSON Lines and CSV as they come, other formats at the end."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.cli.checks import output_file
from intarsia.errors import IntarsiaError, check_extra
from intarsia.formatting import json_text, printable
from intarsia.tasks.examples import Question

if TYPE_CHECKING:
    from intarsia.cli.answers import Row
    from intarsia.serve.prediction import Prediction

ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".json": "json", ".xlsx": "xlsx"}
FORMATS = ("jsonl", "csv", "tsv", "json", "xlsx", "squad")
# The field of a prediction that an empty answer has, by task kind.
MAIN_FIELD = {
    "label": "label",
    "labels": "labels",
    "score": "score",
    "tags": "tags",
    "span": "answer",
    "words": "masks",
}


def chosen_format(output: Path | None, format: str | None, kind: str) -> str:
    """Return the output format; raise if the options do not fit each other or the task."""
    check_format(output, format)
    found = format or ("jsonl" if output is None else ENDINGS[output.suffix.lower()])
    if found == "squad" and kind != "span":
        raise IntarsiaError(f"The format squad is for span tasks; this task is of the kind {kind}.")
    return found


def check_format(output: Path | None, format: str | None) -> None:
    """Raise if the options cannot fit, whatever the task is."""
    if format is not None and format not in FORMATS:
        raise IntarsiaError(f"Unknown format {format!r}; expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    if output is None:
        if format == "xlsx":
            raise IntarsiaError("A workbook is not written to standard output: name a file with --output.")
        return
    output_file(output)
    by_ending = ENDINGS.get(output.suffix.lower())
    if by_ending is None and format is None:
        raise IntarsiaError(
            f"{output} has an ending that names no format; expected {', '.join(ENDINGS)}. Rename it, or give --format."
        )
    if (
        by_ending is not None
        and format is not None
        and by_ending != format
        and (format, by_ending) != ("squad", "json")
    ):
        raise IntarsiaError(f"--format {format} does not fit the file name {output}. Change one of the two.")
    if "xlsx" in (format, by_ending):
        check_extra("xlsx", "openpyxl")


class Writer:
    """Takes rows with their answers. To standard output it writes JSON Lines and CSV at once."""

    def __init__(self, name: str, kind: str, format: str, output: Path | None) -> None:
        self.name, self.kind, self.format, self.output = name, kind, format, output
        self.kept: list[dict[str, Any]] = []  # what is written at the end
        self.columns: list[str] | None = None  # of the CSV that is being written
        self.count = self.empty = 0
        self.squad: dict[str, str] = {}

    def take(self, rows: Sequence[Row], predictions: Sequence[Prediction | None]) -> None:
        made: list[dict[str, Any]] = []
        for row, prediction in zip(rows, predictions, strict=True):
            self.count += 1
            self.empty += prediction is None
            if self.format == "squad":
                self._take_squad(row, prediction)
            elif self.format in ("jsonl", "json"):
                made.append(self._record(row, prediction))
            else:
                made += self._flat(row, prediction)
        if self.output is None and self.format in ("jsonl", "csv", "tsv"):
            self._print(made)
        else:
            self.kept += made

    def end(self, *, quiet: bool = False) -> None:
        """Write what is left, and say how much there was."""
        if not self.count:
            raise IntarsiaError("No texts were given; give them as arguments, on standard input, or with --file.")
        if self.output is not None and self.format == "xlsx":
            from intarsia.tasks.spreadsheet import write_rows

            write_rows(self.output, [{k: _cell(v) for k, v in row.items()} for row in self.kept])
        elif self.output is not None:
            files.replace(self.output, [self._content().encode()])
        elif self.kept or self.format in ("json", "squad"):
            _put(self._content())
        if quiet:
            return
        if self.empty:
            print(f"{self.empty:,} of {self.count:,} rows have no text: their answers are empty.", file=sys.stderr)
        if self.output is not None:
            print(f"Wrote {self.count:,} predictions to {self.output}", file=sys.stderr)

    def _content(self) -> str:
        if self.format == "squad":
            return json_text(self.squad) + "\n"
        if self.format == "json":
            return "[\n" + ",\n".join(_json(row) for row in self.kept) + "\n]\n"
        if self.format == "jsonl":
            return "".join(_json(row) + "\n" for row in self.kept)
        return _separated(self.kept, list(dict.fromkeys(name for row in self.kept for name in row)), self.format)

    def _print(self, made: list[dict[str, Any]]) -> None:
        if self.format == "jsonl":
            _put("".join(_json(row) + "\n" for row in made))
        elif self.columns is None:
            self.kept += made
            if self.empty == self.count:
                return  # the columns are known with the first answer
            self.columns = list(dict.fromkeys(name for row in self.kept for name in row))
            _put(_separated(self.kept, self.columns, self.format))
            self.kept = []
        else:
            _put(_separated(made, self.columns, self.format, header=False))
        sys.stdout.flush()

    def _record(self, row: Row, prediction: Prediction | None) -> dict[str, Any]:
        """The columns of a row with its answer's fields. A field with the name of a column is prefixed."""
        answer = {"task": self.name, MAIN_FIELD[self.kind]: None} if prediction is None else prediction.to_dict()
        columns = row.columns
        if not row.of_file and isinstance(row.text, Question):
            columns = {"id": row.text.id, **columns}
        return {**columns, **{f"predicted_{k}" if k in columns else k: v for k, v in answer.items()}}

    def _flat(self, row: Row, prediction: Prediction | None) -> list[dict[str, Any]]:
        """The lines of a table for one row: one, or one for each word (tags) or candidate (words)."""
        if self.kind in ("tags", "words"):
            counted = "sentence" if self.kind == "tags" else "text"
            kept = {k: v for k, v in row.columns.items() if isinstance(v, str | int | float) and k not in TEXTS}
            start = {counted: self.count, **(kept if row.of_file else {}), "task": self.name}
            if prediction is None:
                return [start]
            if self.kind == "tags":
                return [{**start, **word} for word in prediction.tags or ()]
            masks = enumerate(prediction.masks or (), 1)
            return [{**start, "mask": i, **word} for i, mask in masks for word in mask["words"]]
        record = self._record(row, prediction)
        columns = row.columns.keys()
        answer = {} if prediction is None else prediction.to_dict()
        for name in ("candidates", "probabilities"):
            if name in answer:
                record.pop(f"predicted_{name}" if name in columns else name)
        for label, probability in (answer.get("probabilities") or {}).items():
            record[f"p({label})"] = probability
        field = "predicted_labels" if "labels" in columns else "labels"
        if answer.get("labels") is not None:
            record[field] = "|".join(record[field])
        return [record]

    def _take_squad(self, row: Row, prediction: Prediction | None) -> None:
        """Keep an answer for the JSON that SQuAD's evaluation script reads: question id → answer text."""
        key = row.text.id if isinstance(row.text, Question) else str(row.columns.get("id", ""))
        if not key or key in self.squad:
            raise IntarsiaError("The format squad needs a span task and questions with unique ids, from --file.")
        self.squad[key] = "" if prediction is None else prediction.answer or ""


TEXTS = ("text", "tokens", "tags")  # columns that a table with a line for each word does not repeat


def _put(text: str) -> None:
    """Write to standard output; a terminal gets no characters that it would obey."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def _json(value: Any) -> str:
    try:
        return json_text(value)
    except (TypeError, ValueError):  # a column of a file with dates or bytes
        return json_text(json.loads(json.dumps(value, default=str)))


def _cell(value: Any) -> Any:
    """A value as a cell of a workbook."""
    return value if value is None or isinstance(value, str | int | float) else _json(value)


def _separated(rows: Sequence[dict[str, Any]], columns: Sequence[str], format: str, *, header: bool = True) -> str:
    made = io.StringIO()
    writer = csv.DictWriter(
        made, fieldnames=columns, lineterminator="\n", delimiter="\t" if format == "tsv" else ",", extrasaction="ignore"
    )
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: _json(value) if isinstance(value, list | dict) else value for name, value in row.items()}
        )
    return made.getvalue()
