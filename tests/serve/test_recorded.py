"""Recorded passes answer as other passes do. On a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU (TRITON_INTERPRET=1 interprets the kernels on a CPU, slowly)", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")

from intarsia.encoder.encoder import Encoder  # noqa: E402
from intarsia.encoder.slots import start  # noqa: E402
from intarsia.methods import Bottleneck, Features, Full, LoRA, Method, Prefix  # noqa: E402
from intarsia.serve.ask import Ask  # noqa: E402
from intarsia.serve.engine import Engine  # noqa: E402
from intarsia.serve.limits import Limits  # noqa: E402
from intarsia.serve.predictor import Predictor  # noqa: E402
from intarsia.serve.recorded import RecordedSlots  # noqa: E402
from intarsia.serve.served import Served  # noqa: E402
from intarsia.tasks.learned import Interface, Learned  # noqa: E402
from intarsia.tasks.tagging import Tags  # noqa: E402
from intarsia.tasks.task_kind import TaskKind  # noqa: E402
from tests.serve.test_composed import compositions  # noqa: E402
from tests.support.families import tiny_with_words  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.interpreted]
TEXTS = ["good film", "an awful day", "the sun is so hot", "it", "a great big apple and a poor small plum " * 3]
KINDS: dict[str, TaskKind] = {
    "label": TaskKind("label", ("yes", "no", "maybe")),
    "labels": TaskKind("labels", ("a", "b")),
    "score": TaskKind("score", mean=2.0, spread=3.0),
    "tags": Tags("tags", ("O", "B-x", "I-x")),
}
TASKS: dict[str, tuple[Method, str, str]] = {
    "h-mean": (Bottleneck(4), "label", "mean"),
    "h-pooler": (Bottleneck(4), "labels", "pooler"),
    "h-score": (Bottleneck(4), "score", "cls"),
    "h-tags": (Bottleneck(4), "tags", "none"),
    "lora": (LoRA(2), "label", "mean"),
    "prefix": (Prefix(2), "label", "mean"),
    "eager": (Features(hidden=5), "label", "mean"),
    "full": (Full(), "label", "mean"),
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = tiny_with_words()
    return encoder.to("cuda") if CUDA else encoder


@pytest.fixture(scope="module")
def tasks(encoder: Encoder) -> dict[str, Served]:
    served = {}
    for seed, (name, (method, kind, pooling)) in enumerate(TASKS.items()):
        torch.manual_seed(seed)
        task_kind = KINDS[kind]
        head = task_kind.head(pooling)  # type: ignore[arg-type]
        specs = {f"method.{k}": v for k, v in method.phases(encoder.shape)[-1].specs.items()}
        specs |= {f"head.{k}": v for k, v in head.tensors(encoder.shape, method.row_width(encoder.shape)).items()}
        tensors = {k: v.cpu() + 0.1 * torch.randn(v.shape) for k, v in start(specs, encoder, seed).items()}
        learned = Learned(method, head, task_kind, tensors)
        served[name] = Served(name, Interface(task_kind), lambda learned=learned: learned, name, 1)
    return served


def engine_of(encoder: Encoder, tasks: dict[str, Served]) -> Engine:
    engine = Engine(encoder, lambda name, *_: tasks[name])
    engine.predictor = Predictor(encoder, interpreted=not CUDA)
    return engine


def test_recorded_passes_answer_as_others_do(encoder: Encoder, tasks: dict[str, Served]) -> None:
    """All kinds, poolings and methods, rows of the plain base, and methods that cannot be recorded, in one call."""
    asks = [Ask(name, text) for text in TEXTS for name in tasks]
    asks += [Ask(name, TEXTS[i % 5], embed=True) for i, name in enumerate(tasks)]
    asks += [Ask(None, text, embed=True) for text in TEXTS]
    engine = engine_of(encoder, tasks)
    answers = engine.answer(asks)
    shapes = engine.predictor.shapes.values()
    assert {slots.method.name for slots in shapes if isinstance(slots, RecordedSlots)} == {
        "bottleneck",
        "lora",
        "prefix",
    }
    engine.close()
    plain = Predictor(encoder)
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.error is None, (ask, answer.error)
        if ask.embed:
            (expected,) = _eager(encoder, tasks, ask)
            assert np.allclose(answer.vector, expected, atol=1e-4), ask
            continue
        served = tasks[ask.task or ""]
        example = served.interface.task_kind.parse_request(ask.text, "", False)
        inputs = served.interface.inputs([example], encoder)
        rows = [torch.from_numpy(np.asarray(row)) for row in _eager_outputs(plain, served, inputs.segments)]
        (described,) = served.interface.task_kind.describe_all([example], inputs, [row.numpy() for row in rows])
        assert answer.prediction is not None
        _close(answer.prediction.to_dict(), described)


def test_a_slot_that_is_taken_again_answers_for_its_new_task(encoder: Encoder, tasks: dict[str, Served]) -> None:
    engine = engine_of(encoder, tasks)
    first = engine.answer([Ask("h-mean", TEXTS[0])])
    engine.drop("h-mean")
    other = engine.answer([Ask("h-pooler", TEXTS[0])])
    again = engine.answer([Ask("h-mean", TEXTS[0]), Ask("h-pooler", TEXTS[0])])
    engine.close()
    _close(again[0].prediction.to_dict(), first[0].prediction.to_dict())  # type: ignore[union-attr]
    _close(again[1].prediction.to_dict(), other[0].prediction.to_dict())  # type: ignore[union-attr]


def test_compositions_answer_as_in_other_passes(encoder: Encoder) -> None:
    """Stacks over different parents share a pass; parents are in slots of tables of their own."""
    made = compositions(encoder)
    names = ("stack-a", "stack-b", "fuse", "average", "task")  # few and short, for the interpreter
    engine, asks = engine_of(encoder, made.served), [Ask(name, text) for text in TEXTS[:2] for name in names]
    answers = engine.answer(asks)
    shapes = engine.predictor.shapes.values()
    recorded = {slots.method.name for slots in shapes if isinstance(slots, RecordedSlots) and slots.passes}
    assert recorded >= {"stack", "fuse", "average"}
    stacks = next(slots for slots in shapes if "stack-a" in slots.residents)
    assert {"stack-a", "stack-b"} <= stacks.residents.keys() and len(stacks.passes) == 1
    engine.close()
    plain = Predictor(encoder)
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.error is None and answer.prediction is not None, (ask, answer.error)
        expected = plain.predict([(made.served[ask.task or ""], encoder.tokenize([ask.text])[0])])[0]  # type: ignore[list-item]
        probabilities = list((answer.prediction.probabilities or {}).values())
        assert probabilities == pytest.approx(list(expected), abs=1e-4), ask


def test_a_parent_that_comes_back_in_another_slot(encoder: Encoder) -> None:
    """Few slots: parents and children leave and come back, and recorded passes find them."""
    made = compositions(encoder)
    engine = Engine(encoder, lambda name, *_: made.served[name])
    engine.predictor = Predictor(encoder, Limits(slots=2), interpreted=not CUDA)
    first = engine.answer([Ask("stack-a", TEXTS[0])])
    engine.answer([Ask("b", TEXTS[0]), Ask("c", TEXTS[1])])
    engine.answer([Ask("stack-b", TEXTS[1])])
    again = engine.answer([Ask("stack-b", TEXTS[0]), Ask("stack-a", TEXTS[0])])
    engine.close()
    _close(again[1].prediction.to_dict(), first[0].prediction.to_dict())  # type: ignore[union-attr]


def _eager_outputs(predictor: Predictor, served: Served, segments: object) -> list[np.ndarray]:
    from intarsia.serve.predictor import PassRow, predictions

    held = {served.key: predictor.hold(served)}
    rows = [PassRow(served.key, segment) for segment in segments]  # type: ignore[attr-defined]
    with torch.no_grad():
        return predictor._pass(rows, held, predictions)


def _eager(encoder: Encoder, tasks: dict[str, Served], ask: Ask) -> list[np.ndarray]:
    from intarsia.serve.predictor import PassRow, predictions

    predictor = Predictor(encoder)
    held = {} if ask.task is None else {ask.task: predictor.hold(tasks[ask.task])}
    (segment,) = encoder.tokenize([ask.text])  # type: ignore[list-item]
    with torch.no_grad():
        return predictor._pass([PassRow(ask.task, segment, embed=True)], held, predictions)


def _close(found: object, expected: object) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            _close(found[key], value)  # type: ignore[index]
    elif isinstance(expected, list | tuple):
        for a, b in zip(found, expected, strict=True):  # type: ignore[call-overload]
            _close(a, b)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4)
    else:
        assert found == expected
