"""From a request to the engine and back: deadlines, clients that leave, refusals, and the times of the stages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError
from intarsia.service.errors import Failure
from intarsia.service.schemas import QuestionInput
from intarsia.service.web import Disconnected, Request
from intarsia.tasks.examples import Question

if TYPE_CHECKING:
    from intarsia.serve.ask import Answer, Ask
    from intarsia.serve.call import Call
    from intarsia.serve.engine import Engine
    from intarsia.serve.prediction import Text

SHORT = 2000  # characters that are tokenized in the event loop's thread: faster than waking another one


def text_of(given: str | list[str] | QuestionInput) -> Text:
    """The input of a request as the library takes it."""
    if isinstance(given, str):
        return given
    if isinstance(given, QuestionInput):
        return Question(given.question, given.context)
    return tuple(given)


async def ask(
    request: Request, asks: Sequence[Ask], *, timeout_ms: int | None = None, truncate: bool = True
) -> list[Answer]:
    """The answers, in order. Raises `Failure` for the whole request, and `Disconnected` if the client leaves."""
    service = request.service
    engine = service.running()
    if len(asks) > service.options.rows:
        raise Failure(413, f"{len(asks)} rows; this service takes at most {service.options.rows} a request.")
    seconds = min(timeout_ms or service.options.timeout_ms, service.options.timeout_ms) / 1000
    deadline = time.monotonic() + seconds
    submit = partial(engine.submit, asks, deadline=deadline, truncate=truncate)
    try:
        engine.check_room(asks)  # here, so that a refusal never waits for a thread
        call = submit() if _quick(engine, asks) else await service.in_thread(submit)
    except IntarsiaError as error:
        raise service.failure(error) from error
    await _wait(request, call, deadline)
    try:
        answers = call.result(timeout=0)
    except IntarsiaError as error:
        raise service.failure(error) from error
    _note(request, answers, call)
    return answers


def _quick(engine: Engine, asks: Sequence[Ask]) -> bool:
    """Whether admitting these rows takes no longer than waking a thread: few short texts of resident tasks."""
    if len(asks) > 4 or sum(len(a.text) for a in asks if isinstance(a.text, str)) > SHORT:
        return False
    return all(a.task is None or engine.at_hand(a.task, a.version) for a in asks)


async def _wait(request: Request, call: Call, deadline: float) -> None:
    """Wait until the call has ended. A client that leaves, and a deadline that passes, cancel it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    def wake(_: Call) -> None:
        loop.call_soon_threadsafe(end)

    call.add_done_callback(wake)
    left = asyncio.ensure_future(_departure(request))
    try:
        done, _ = await asyncio.wait(
            (ended, left), timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
        )
        if ended in done:
            return
        if left in done:
            call.cancel()
            raise Disconnected
        call.expire()
        raise Failure(504, "The deadline of the request has passed; rows that waited were dropped.")
    except asyncio.CancelledError:
        call.cancel()
        raise
    finally:
        left.cancel()


async def _departure(request: Request) -> None:
    """Return when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _note(request: Request, answers: Sequence[Answer], call: Call) -> None:
    timing = call.timing
    stages = {name: getattr(timing, name) for name in ("total", "tokenization", "queue", "inference")}
    request.facts["stages"] = stages
    request.facts["rows"] = len(answers)
    request.facts["tokens"] = sum(answer.tokens for answer in answers)
    request.facts["queue_ms"] = round(1000 * timing.queue, 2)
    metrics = request.service.metrics
    metrics.answered(len(answers), stages)
    for answer in answers:
        if answer.error is not None:
            metrics.row_errors[request.service.failure(answer.error).code] += 1


def times(request: Request) -> dict[str, float]:
    return {name: round(1000 * value, 3) for name, value in request.facts["stages"].items()}


def usage(answers: Sequence[Answer]) -> dict[str, int]:
    return {
        "rows": len(answers),
        "tokens": sum(answer.tokens for answer in answers),
        "truncated": sum(answer.truncated for answer in answers),
    }


def refuse_errors(request: Request, answers: Sequence[Answer]) -> None:
    """Raise the first row's error: for formats that have no place for the errors of rows."""
    for index, answer in enumerate(answers):
        if answer.error is not None:
            failure = request.service.failure(answer.error, answer.ask.task)
            if len(answers) > 1:
                failure.message = f"Row {index}: {failure.message}"
            raise failure


def result(request: Request, index: int, answer: Answer, top_k: int | None = None) -> dict[str, Any]:
    """The answer to a row as the API gives it."""
    if answer.error is not None:
        detail = request.service.failure(answer.error, answer.ask.task).detail()
        return {"index": index, "task": answer.ask.task, "error": detail}
    assert answer.prediction is not None
    found = {"index": index, **answer.prediction.to_dict(), "version": answer.version, "kind": answer.kind}
    if top_k is not None:
        if "probabilities" in found:
            ranked = sorted(found["probabilities"].items(), key=lambda pair: -pair[1])
            found["probabilities"] = dict(ranked[:top_k])
        if "candidates" in found:
            found["candidates"] = found["candidates"][:top_k]
        if "masks" in found:
            found["masks"] = [{**mask, "words": mask["words"][:top_k]} for mask in found["masks"]]
    return found
