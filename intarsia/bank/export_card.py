"""The card (README.md) of an exported adapter: what it is, on which base, with which scores, and how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from intarsia.bank.inlay import Inlay
from intarsia.exchange.adapter import Adapter
from intarsia.exchange.adapterhub_heads_written import MODELS
from intarsia.exchange.class_heads import class_head
from intarsia.exchange.modules import Modules
from intarsia.formatting import score
from intarsia.methods import short_name
from intarsia.version import __version__

LIBRARIES = {"peft": "peft", "adapterhub": "adapters", "sft": "composable-sft"}
PIPELINES = {"label": "text-classification", "labels": "text-classification", "tags": "token-classification",
             "span": "question-answering"}  # fmt: skip


def card(inlay: Inlay, adapter: Adapter, modules: Modules, version: int, format: str, licence: str | None) -> str:
    """Return the card of a task that is exported in the format of another library."""
    library = LIBRARIES.get(format, format)
    lines = [
        *_front(adapter, licence, library),
        *_about(inlay, version, adapter.base, licence, f"in the format of `{library}`"),
        "## Use",
        "",
        f"It needs `{library}`; it does not need Intarsia.",
        "",
        "```python",
        *_code(adapter, modules, format),
        "```",
        "",
    ]
    return "\n".join(lines)


def inlay_card(inlay: Inlay, version: int, base: str, licence: str | None, file: str) -> str:
    """Return the card of a task that is exported as an inlay."""
    front = {"base_model": base, "library_name": "intarsia", **({"license": licence} if licence else {})}
    lines = [
        *_matter({**front, "tags": ["intarsia", inlay.method["type"]]}),
        *_about(inlay, version, base, licence, f"as an inlay (`{file}`)"),
        "## Use",
        "",
        "```console",
        f"$ intarsia pull {inlay.name} OWNER/REPO",
        "```",
        "",
    ]
    return "\n".join(lines)


def _front(adapter: Adapter, licence: str | None, library: str) -> list[str]:
    matter: dict[str, Any] = {"base_model": adapter.base, "library_name": library}
    matter |= {"license": licence} if licence else {}
    matter |= {"pipeline_tag": PIPELINES[adapter.kind]} if adapter.kind in PIPELINES else {}
    return _matter({**matter, "tags": [library, adapter.method.name, "intarsia"]})


def _matter(values: Mapping[str, Any]) -> list[str]:
    """Return the YAML block of a card; JSON strings and lists are YAML too."""
    return ["---", *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()), "---", ""]


def _about(inlay: Inlay, version: int, base: str, licence: str | None, how: str) -> Iterator[str]:
    count = inlay.parameters
    yield f"# {inlay.name}"
    yield ""
    yield f"The task `{inlay.name}`, version {version}, exported by Intarsia {__version__} {how}."
    yield ""
    yield f"- Base: `{base}`, with weights of the SHA-256 fingerprint `{inlay.encoder['fingerprint']}`"
    yield f"- Method: {short_name(inlay.method)}, {count['method']:,} parameters and {count['head']:,} in the head"
    if inlay.labels:
        yield "- Labels, in the order of the outputs: " + ", ".join(f"`{label}`" for label in inlay.labels)
    if inlay.kind == "score":
        mean, spread = float(inlay.head.get("mean", 0.0)), float(inlay.head.get("spread", 1.0))
        yield f"- Score: output × {spread:g} + {mean:g}"
    if inlay.head.get("thresholds"):
        limits = ", ".join(f"{limit:g}" for limit in inlay.head["thresholds"])
        yield f"- A label applies from these probabilities (sigmoid) on: {limits}"
    pairs = "pairs of texts" if inlay.data.get("pairs") else "single texts"
    yield f"- Input: {pairs}, at most {inlay.interface.max_length} tokens"
    yield from _scores(inlay.metrics)
    yield f"- Licence: {licence or 'not stated; that of the base and of the training data applies'}"
    if inlay.data.get("source"):
        yield f"- Data: {inlay.data['source']}"
    yield ""


def _scores(metrics: Mapping[str, Any]) -> Iterator[str]:
    test = metrics.get("test")
    if test and test.get("value") is not None:
        interval = ""
        if test.get("low") is not None:
            interval = f" (95 % interval {score(test['low'])} to {score(test['high'])})"
        yield f"- {metrics.get('metric')} on {test.get('examples'):,} test examples: {score(test['value'])}{interval}"


def _code(adapter: Adapter, modules: Modules, format: str) -> Iterator[str]:
    """Yield the lines of Python that load the folder in the other library."""
    flexible = format == "adapterhub" and modules.encoder.shape.family in MODELS  # heads of the library's own
    head = class_head(adapter, modules) if adapter.head and not flexible else None
    kind = head.auto_class if head else "AutoModel"
    options = ""
    if head:
        labels = adapter.labels or tuple(str(i) for i in range(adapter.head.outputs if adapter.head else 0))
        options = f", id2label={dict(enumerate(labels))!r}" if adapter.labels else f", num_labels={len(labels)}"
    base = json.dumps(adapter.base)
    if format == "peft":
        yield "from peft import PeftModel"
        yield f"from transformers import {kind}"
        yield ""
        yield f"model = {kind}.from_pretrained({base}{options})"
        yield 'model = PeftModel.from_pretrained(model, ".")  # this folder'
    elif format == "sft":
        yield "from sft import SFT"
        yield f"from transformers import {kind}"
        yield ""
        yield f"model = {kind}.from_pretrained({base}{options})"
        yield 'SFT(".").apply(model)  # this folder'
    else:
        yield "from adapters import AutoAdapterModel" if flexible else "import adapters"
        yield from () if flexible else (f"from transformers import {kind}",)
        yield ""
        yield f"model = {'AutoAdapterModel' if flexible else kind}.from_pretrained({base}{options})"
        yield from () if flexible else ("adapters.init(model)",)
        yield 'name = model.load_adapter(".", with_head=True)  # this folder'
        yield "model.set_active_adapters(name)"
