"""Routes of other servers, so that their clients work: OpenAI's embeddings and models, vLLM's classification, and the
predictions of Text Embeddings Inference (TEI). `model` names a task."""

from __future__ import annotations

import base64
import calendar
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from intarsia.bank.bank import Bank
from intarsia.serve.ask import Answer, Ask
from intarsia.service import schemas
from intarsia.service.asking import ask, refuse_errors, text_of
from intarsia.service.catalog import Listed
from intarsia.service.errors import Failure
from intarsia.service.predict import FAILURES
from intarsia.service.web import Operation, Reply, Request, encode

EMBEDDINGS = msgspec.json.Decoder(schemas.EmbeddingsRequest)
CLASSIFY = msgspec.json.Decoder(schemas.ClassifyRequest)
TEI = msgspec.json.Decoder(schemas.TEIRequest)
CREATED = msgspec.json.Decoder(schemas.Created)
WITH_404 = (404, 409, *FAILURES)


async def embeddings(request: Request) -> Reply:
    body = await request.json(EMBEDDINGS)
    texts = [body.input] if isinstance(body.input, str) else list(map(text_of, body.input))
    base = request.service.base_name
    task = None if body.model == base else body.model
    answers = await ask(request, [Ask(task, text, embed=True) for text in texts])
    refuse_errors(request, answers)
    vectors = [answer.vector for answer in answers]
    width = len(vectors[0])  # type: ignore[arg-type]
    if body.dimensions not in (None, width):
        raise Failure(422, f"The embeddings of {body.model} have {width} dimensions.", param="dimensions")
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    return Reply.json({"object": "list", "data": data, "model": body.model, "usage": _usage(answers)})


def _vector(vector: Any, form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return vector.tolist()


async def models(request: Request) -> Reply:
    base = _model(request.service.base_name, 0)
    return Reply(await request.service.in_thread(_models, request.service.bank, base))


def _models(bank: Bank, base: dict[str, Any]) -> bytes:
    """All models as JSON. Only the date of each description is decoded: a description may have 25 KB."""
    found = [base]
    for entry in Listed.of(bank).entries:
        if entry.state == "ok":
            found.append(_model(entry.name, _seconds(CREATED.decode(entry.header_json).created)))
    return encode({"object": "list", "data": found})


async def model(request: Request) -> Reply:
    name = request.part("model")
    if name == request.service.base_name:
        return Reply.json(_model(name, 0))
    entry = await request.service.in_thread(request.service.bank.show, name)
    return Reply.json(_model(name, _seconds(entry.header.created)))


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "intarsia"}


def _seconds(created: str) -> int:
    try:
        return calendar.timegm(time.strptime(created[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0


async def classify(request: Request) -> Reply:
    body = await request.json(CLASSIFY)
    texts = [body.input] if isinstance(body.input, str) else body.input
    answers = await ask(request, [Ask(body.model, text) for text in texts])
    refuse_errors(request, answers)
    data = []
    for index, answer in enumerate(answers):
        probabilities = _probabilities(answer)
        label = max(probabilities, key=probabilities.__getitem__)
        data.append(
            {"index": index, "label": label, "probs": list(probabilities.values()), "num_classes": len(probabilities)}
        )
    return Reply.json(
        {"id": f"classify-{request.id}", "object": "list", "created": int(time.time()), "model": body.model,
         "data": data, "usage": _usage(answers)}
    )  # fmt: skip


async def tei_predict(request: Request) -> Reply:
    body = await request.json(TEI)
    texts, single = _tei_texts(body.inputs)
    task = body.model or await _only_task(request)
    answers = await ask(request, [Ask(task, text) for text in texts], truncate=body.truncate)
    refuse_errors(request, answers)
    scores = [_scores(answer, body.raw_scores) for answer in answers]
    return Reply.json(scores[0] if single else scores)


def _tei_texts(inputs: str | Sequence[str | list[str]]) -> tuple[list[str | tuple[str, ...]], bool]:
    """The texts or pairs, and whether there is only one, outside a batch."""
    if isinstance(inputs, str):
        return [inputs], True
    if all(isinstance(part, str) for part in inputs):
        if len(inputs) > 2:
            raise Failure(422, "inputs: a list of texts is one text or a pair; write a batch as [[text], [text], …].",
                          param="inputs")  # fmt: skip
        return [_text_or_pair(inputs)], True  # type: ignore[arg-type]
    return [part if isinstance(part, str) else _text_or_pair(part) for part in inputs], False


def _text_or_pair(part: Sequence[str]) -> str | tuple[str, ...]:
    return part[0] if len(part) == 1 else tuple(part)


async def _only_task(request: Request) -> str:
    listed = await request.service.in_thread(Listed.of, request.service.bank)
    if len(listed.entries) != 1:
        raise Failure(
            422, f"model is missing: the bank has {len(listed.entries)} tasks, so name the one that answers.",
            param="model",
        )  # fmt: skip
    return listed.entries[0].name


def _probabilities(answer: Answer) -> dict[str, float]:
    assert answer.prediction is not None
    if answer.prediction.probabilities is None:
        raise Failure(422, f"The task is of the kind {answer.kind}; this route answers for labels only.", param="model")
    return answer.prediction.probabilities


def _scores(answer: Answer, raw: bool) -> list[dict[str, Any]]:
    """Scores by label, best first. Raw scores of one label of n are log-probabilities: logits up to a constant."""
    assert answer.prediction is not None
    if answer.prediction.score is not None:
        return [{"score": answer.prediction.score, "label": "score"}]
    table = _probabilities(answer)
    if raw:
        table = {label: _raw(p, answer.kind == "labels") for label, p in table.items()}
    return [{"score": score, "label": label} for label, score in sorted(table.items(), key=lambda pair: -pair[1])]


def _raw(p: float, independent: bool) -> float:
    tiny = 1e-30
    return math.log(max(p, tiny)) - (math.log(max(1 - p, tiny)) if independent else 0.0)


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    tokens = sum(answer.tokens for answer in answers)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


OPERATIONS = (
    Operation("POST", "/v1/embeddings", embeddings, "OpenAI: embeddings of the base or of a task",
              takes=schemas.EmbeddingsRequest, gives=schemas.EmbeddingsReply, statuses=WITH_404),
    Operation("GET", "/v1/models", models, "OpenAI: the base and the tasks", gives=schemas.ModelList,
              statuses=(503,)),
    Operation("GET", "/v1/models/{model}", model, "OpenAI: one task", gives=schemas.Model,
              statuses=(404, 409, 503)),
    Operation("POST", "/classify", classify, "vLLM: classify with a task", takes=schemas.ClassifyRequest,
              gives=schemas.ClassifyReply, statuses=WITH_404),
    Operation("POST", "/predict", tei_predict, "TEI: scores of labels", takes=schemas.TEIRequest,
              gives=list[schemas.TEIScore | list[schemas.TEIScore]], statuses=WITH_404),
)  # fmt: skip
