"""The answers of several tasks to each text: `intarsia predict topic,tone`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.bank.family import task_and_version
from intarsia.cli.answer_files import Writer
from intarsia.errors import IntarsiaError
from intarsia.serve.parallel import Parallel

if TYPE_CHECKING:
    from intarsia.bank.bank import Bank
    from intarsia.bank.inlay import InlayHeader
    from intarsia.cli.answers import Row
    from intarsia.client import Client
    from intarsia.serve.prediction import Prediction

OWN_INPUT = ("span", "tags", "words")  # kinds whose texts have a form of their own
NOT_FLAT = ("task", "probabilities", "candidates")  # fields of an answer that no table has

Answers = Mapping[str, "Prediction"]


def tasks_of(name: str, **given: Any) -> Parallel | None:
    """Return the tasks that a name with commas lists; None if it names one task. `given` are options for one task."""
    if "," not in name:
        return None
    unfit = next((option for option, value in given.items() if value is not None), None)
    if unfit is not None:
        raise IntarsiaError(f"--{unfit} is for one task; {name} names several. Write a version as in tone@2.")
    return Parallel(*(part.strip() for part in name.split(",")))


def header_of_all(bank: Bank, tasks: Parallel) -> InlayHeader:
    """Return the header of the first task; raise unless all tasks read texts of one form."""
    headers = {task: bank.show(*task_and_version(task)).header for task in tasks.tasks}
    forms = {
        task: (header.kind if header.kind in OWN_INPUT else "text", bool(header.data.get("pairs")))
        for task, header in headers.items()
    }
    first = tasks.tasks[0]
    for task, form in forms.items():
        if form != forms[first]:
            raise IntarsiaError(
                f"{first} and {task} do not read the same texts ({_shown(forms[first])}; {_shown(form)}), so they "
                "cannot answer together. Ask them one after another."
            )
    return headers[first]


def _shown(form: tuple[str, bool]) -> str:
    return "text pairs" if form == ("text", True) else {"text": "single texts"}.get(form[0], f"the kind {form[0]}")


def of_service(client: Client, tasks: Parallel) -> Callable[[list[Any]], Sequence[Answers]]:
    """Return the function that asks a service."""

    def ask(texts: list[Any]) -> Sequence[Answers]:
        found = iter(client.predict([(task, text) for text in texts for task in tasks.tasks]))
        return [{task: next(found) for task in tasks.tasks} for _ in texts]

    return ask


class ParallelWriter(Writer):
    """JSON has an object for each task; tables have the columns `task_field`."""

    def __init__(self, tasks: Parallel, format: str, output: Path | None) -> None:
        super().__init__(", ".join(tasks.tasks), "label", format, output)
        self.tasks = tasks.tasks

    def _record(self, row: Row, prediction: Answers | None) -> dict[str, Any]:  # type: ignore[override]
        answers = {task: None if prediction is None else _plain(prediction[task]) for task in self.tasks}
        return {**row.columns, **{f"predicted_{k}" if k in row.columns else k: v for k, v in answers.items()}}

    def _flat(self, row: Row, prediction: Answers | None) -> list[dict[str, Any]]:  # type: ignore[override]
        fields = {
            f"{task}_{field}": value
            for task, answer in (prediction or {}).items()
            for field, value in answer.to_dict().items()
            if field not in NOT_FLAT
        }
        return [{**row.columns, **{f"predicted_{k}" if k in row.columns else k: v for k, v in fields.items()}}]


def _plain(prediction: Prediction) -> dict[str, Any]:
    return {field: value for field, value in prediction.to_dict().items() if field != "task"}
