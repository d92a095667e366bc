"""Predictions: many tasks of many texts in one call, or one task."""

from __future__ import annotations

import msgspec

from intarsia.errors import UnknownTask
from intarsia.serve.ask import Answer, Ask
from intarsia.service.asking import ask, result, text_of, times, usage
from intarsia.service.errors import Failure
from intarsia.service.schemas import PredictReply, PredictRequest, TaskPredictRequest
from intarsia.service.web import Operation, Reply, Request

MANY = msgspec.json.Decoder(PredictRequest)
ONE = msgspec.json.Decoder(TaskPredictRequest)
FAILURES = (413, 429, 503, 504)


async def predict(request: Request) -> Reply:
    body = await request.json(MANY)
    answers = await ask(request, _asks(body, request.service.options.rows), timeout_ms=body.timeout_ms,
                        truncate=body.truncate)  # fmt: skip
    return _reply(request, answers, body.top_k)


async def predict_task(request: Request) -> Reply:
    body = await request.json(ONE)
    task = request.part("task")
    asks = [Ask(task, text_of(given), body.version) for given in body.inputs]
    answers = await ask(request, asks, timeout_ms=body.timeout_ms, truncate=body.truncate)
    error = answers[0].error
    if isinstance(error, UnknownTask):
        raise request.service.failure(error)
    return _reply(request, answers, body.top_k)


def _asks(body: PredictRequest, most: int) -> list[Ask]:
    if body.requests is not None:
        if body.tasks is not None or body.inputs is not None:
            raise Failure(422, "Give either requests, or tasks and inputs.", param="requests")
        return [Ask(row.task, text_of(row.input), row.version) for row in body.requests]
    if body.tasks is None or body.inputs is None:
        missing = "inputs" if body.tasks is not None else "tasks" if body.inputs is not None else "requests"
        raise Failure(422, f"{missing} is missing: give requests, or tasks and inputs.", param=missing)
    if len(body.tasks) * len(body.inputs) > most:
        raise Failure(
            413, f"{len(body.tasks)} tasks of {len(body.inputs)} inputs are more than the {most} rows of a request."
        )
    texts = [text_of(given) for given in body.inputs]
    return [Ask(task, text) for text in texts for task in body.tasks]


def _reply(request: Request, answers: list[Answer], top_k: int | None) -> Reply:
    return Reply.json(
        {
            "id": f"pred-{request.id}",
            "results": [result(request, index, answer, top_k) for index, answer in enumerate(answers)],
            "usage": usage(answers),
            "timing_ms": times(request),
        }
    )


OPERATIONS = (
    Operation("POST", "/v1/predict", predict, "Predict with many tasks", takes=PredictRequest, gives=PredictReply,
              statuses=FAILURES),
    Operation("POST", "/v1/tasks/{task}/predict", predict_task, "Predict with one task", takes=TaskPredictRequest,
              gives=PredictReply, statuses=(404, *FAILURES)),
)  # fmt: skip
