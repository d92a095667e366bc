"""Input and output of `intarsia predict`: texts from arguments, standard input or files; JSON Lines or CSV out."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia import files
from intarsia.errors import IntarsiaError
from intarsia.formatting import json_text, printable
from intarsia.tasks.examples import Question

if TYPE_CHECKING:
    from intarsia.serve.prediction import Prediction, Text


def gather(
    texts: Sequence[str] | None,
    file: Path | None,
    text: str | None,
    pair: str | None,
    kind: str,
    context: str | None = None,
) -> list[Text]:
    """Return the texts for a task of this kind."""
    if file is not None:
        if texts:
            raise IntarsiaError("Texts were given both as arguments and with --file; use one of the two.")
        from intarsia.tasks.data import load_questions, load_sentences, load_texts

        if kind == "tags":
            return list(load_sentences(file, text=text))
        if kind == "span":
            return list(load_questions(file, text=text, pair=pair))
        return list(load_texts(file, text=text, pair=pair))
    if not texts and sys.stdin.isatty():
        print("Enter one text per line; end with Ctrl-D.", file=sys.stderr)
    try:
        lines = list(texts) if texts else [line.rstrip("\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise IntarsiaError(f"Standard input is not valid UTF-8: {error.reason} at byte {error.start}.") from None
    found = [line if kind in ("tags", "words") else _text(line) for line in lines if line.strip()]
    if not found:
        raise IntarsiaError("No texts were given; give them as arguments, on standard input, or with --file.")
    return found if context is None else [(question, context) for question in found if isinstance(question, str)]


def _text(line: str) -> Text:
    first, tab, second = line.partition("\t")
    return (first, second) if tab else line


def write(predictions: Sequence[Prediction], texts: Sequence[Text], output: Path | None, format: str | None) -> None:
    """Write the predictions to `output`, or to standard output, in the order of the texts."""
    ending = format or ("csv" if output is not None and output.suffix == ".csv" else "jsonl")
    if ending not in ("jsonl", "csv", "squad"):
        raise IntarsiaError(f"Unknown format {ending!r}; expected jsonl, csv or squad.")
    if ending == "squad":
        _output(_squad(predictions, texts), output, len(predictions))
        return
    rows = [{**_columns(text, p), **p.to_dict()} for text, p in zip(texts, predictions, strict=True)]
    content = _csv(rows) if ending == "csv" else "".join(json_text(r) + "\n" for r in rows)
    _output(content, output, len(rows))


def _output(content: str, output: Path | None, count: int) -> None:
    if output is None:
        sys.stdout.write(printable(content) if sys.stdout.isatty() else content)
        return
    files.replace(output, [content.encode()])
    print(f"Wrote {count:,} predictions to {output}", file=sys.stderr)


def _squad(predictions: Sequence[Prediction], texts: Sequence[Text]) -> str:
    """Return the JSON that SQuAD's evaluation script reads: question id → answer text."""
    ids = [text.id if isinstance(text, Question) else "" for text in texts]
    if not all(ids) or len(set(ids)) < len(ids) or any(p.answer is None for p in predictions):
        raise IntarsiaError("The format squad needs a span task and questions with unique ids, from --file.")
    return json_text({i: p.answer for i, p in zip(ids, predictions, strict=True)}) + "\n"


def _columns(text: Text, prediction: Prediction) -> dict[str, str]:
    if isinstance(text, Question):
        return {"id": text.id, "question": text.text}
    if prediction.answer is not None:
        return {"question": text[0]}
    if prediction.tags is not None:
        return {"text": text if isinstance(text, str) else " ".join(text)}
    return {"text": text} if isinstance(text, str) else {"text_a": text[0], "text_b": text[1]}


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    flat = []
    for number, row in enumerate(rows, 1):
        if "tags" in row:
            flat += [{"sentence": number, "task": row["task"], **word} for word in row["tags"]]
            continue
        if "masks" in row:
            masks = enumerate(row["masks"], 1)
            flat += [{"text": number, "task": row["task"], "mask": i, **word} for i, m in masks for word in m["words"]]
            continue
        row.pop("candidates", None)
        probabilities = row.pop("probabilities", {})
        if "labels" in row:
            row["labels"] = "|".join(row["labels"])
        flat.append({**row, **{f"p({label})": p for label, p in probabilities.items()}})
    made = io.StringIO()
    writer = csv.DictWriter(
        made, fieldnames=list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(flat)
    return made.getvalue()
