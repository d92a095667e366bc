"""Methods as written on the command line and in JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from intarsia.errors import IntarsiaError
from intarsia.methods import (
    IA3,
    METHODS,
    PAL,
    PRESETS,
    Bapna,
    BitFit,
    Bottleneck,
    DiffPruning,
    DoRA,
    Features,
    Full,
    LayerNorms,
    LoRA,
    LotteryTicket,
    Method,
    Pfeiffer,
    Prefix,
    TopLayers,
    from_dict,
    parse,
    running_key,
    short_name,
    to_dict,
)
from intarsia.train.job import Settings

WRITTEN: dict[str, Method] = {
    "houlsby": Bottleneck(),
    "houlsby-16": Bottleneck(16),
    "bottleneck": Bottleneck(),
    "bottleneck-2": Bottleneck(2),
    "pfeiffer": Pfeiffer(),
    "pfeiffer-48": Pfeiffer(48),
    "bapna": Bapna(),
    "bapna-8": Bapna(8),
    "single": Bottleneck(places_in_layer="ffn"),
    "single-8": Bottleneck(8, places_in_layer="ffn"),
    "attention-only": Bottleneck(places_in_layer="attention"),
    "attention-only-8": Bottleneck(8, places_in_layer="attention"),
    "parallel": Bottleneck(parallel=True),
    "parallel-8": Bottleneck(8, parallel=True),
    "pal": PAL(),
    "pal-24": PAL(24),
    "lora": LoRA(),
    "lora-4": LoRA(4),
    "dora": DoRA(),
    "dora-4": DoRA(4),
    "ia3": IA3(),
    "prefix": Prefix(),
    "prefix-5": Prefix(5),
    "bitfit": BitFit(),
    "layernorm": LayerNorms(),
    "lt-sft": LotteryTicket(),
    "lt-sft-0.5%": LotteryTicket(0.005),
    "lt-sft-0.02": LotteryTicket(0.02),
    "diff-pruning": DiffPruning(),
    "diff-pruning-10%": DiffPruning(0.1),
    "top": TopLayers(),
    "top-3": TopLayers(3),
    "full": Full(),
    "features": Features(),
    "features-mlp": Features(hidden=256),
    "features-mlp-32": Features(hidden=32),
    "features-mix": Features(mix=True),
}

OPTIONS: list[tuple[str, list[str], Method]] = [
    ("pfeiffer", ["reduction=2", "size=none", "layers=1-2"], Pfeiffer(reduction=2, layers=(1, 2))),
    ("pfeiffer", ["reduction=2", "invertible=yes"], Pfeiffer(reduction=2, invertible=True)),
    ("pfeiffer-48", ["layers=all-but-last"], Pfeiffer(48, layers="all-but-last")),
    ("lora", ["layers=none"], LoRA()),
    ("pal-12", ["heads=3", "norms=no", "dropout=0"], PAL(12, 3, norms=False, dropout=0.0)),
    ("lora", ["targets=query,ffn.up", "alpha=1", "dropout=10%"], LoRA(8, 1.0, ("query", "ffn.up"), dropout=0.1)),
    ("bitfit", ["sites=query,ffn.up", "pooler=yes", "layers=0"], BitFit(("query", "ffn.up"), (0,), True)),
    ("layernorm", ["embedding_norm=false"], LayerNorms(embedding_norm=False)),
    ("layernorm", ["embedding_norm=none"], LayerNorms()),
    ("lt-sft", ["entries=100", "rounds=2", "l1=0.1", "norms=true"], LotteryTicket(0.005, 100, 2, 0.1, True)),
    ("lt-sft-1%", ["entries=none"], LotteryTicket(0.01)),
    ("diff-pruning", ["structured=no", "gate_start=1"], DiffPruning(structured=False, gate_start=1.0)),
    ("features-mix", ["hidden=9"], Features(9, True)),
    ("ia3", ["layers=2,0-1,1"], IA3((0, 1, 2))),
    ("single-8", ["places_in_layer=both"], Bottleneck(8)),
]


@pytest.mark.parametrize("text", WRITTEN)
def test_every_preset_with_and_without_its_size(text: str) -> None:
    assert parse(text) == WRITTEN[text]


def test_all_presets_and_methods_are_among_them() -> None:
    for name, preset in PRESETS.items():
        assert name in WRITTEN
        sized = [text for text, m in WRITTEN.items() if text.startswith(f"{name}-") and text not in PRESETS]
        assert preset.size is None or sized, name
    assert {type(m) for m in WRITTEN.values()} == set(METHODS.values())


@pytest.mark.parametrize(("text", "options", "method"), OPTIONS, ids=lambda v: str(v) if isinstance(v, str) else "")
def test_options_are_read_as_their_types(text: str, options: list[str], method: Method) -> None:
    found = parse(text, options)
    assert found == method
    assert {k: type(v) for k, v in to_dict(found).items()} == {k: type(v) for k, v in to_dict(method).items()}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "Known methods"),
        ("loraa", [], "Did you mean 'lora'?"),
        ("lora4", [], "not known"),
        ("Full", [], "not known"),
        ("houlsby-", [], "is not valid"),
        ("houlsby", ["size"], "'size' is not KEY=VALUE, such as layers=3-5"),
        ("houlsby", ["norms=perhaps"], "yes or no was expected"),
        ("houlsby-x", [], "a whole number was expected"),
        ("houlsby-1.5", [], "a whole number was expected"),
        ("houlsby-0", [], "size 0 is too small"),
        ("bapna--3", [], "size -3 is too small"),
        ("pfeiffer-0", [], "size 0 is too small"),
        ("single-0", [], "too small"),
        ("parallel-0", [], "too small"),
        ("attention-only-none", [], "is not valid"),
        ("pal-100", [], "12 heads"),
        ("lora-0", [], "rank 0 is too small"),
        ("prefix-0", [], "too small"),
        ("top-0", [], "number 0 is too small"),
        ("features-mlp--1", [], "too small"),
        ("lt-sft-0%", [], "a share above 0"),
        ("lt-sft-101%", [], "a share above 0"),
        ("lt-sft-nan", [], "a share above 0"),
        ("lt-sft-half", [], "a number, such as 0.05 or 5%, was expected"),
        ("diff-pruning-1.5", [], "a share above 0"),
        ("diff-pruning-%", [], "is not valid"),
        ("ia3-3", [], "has no size"),
        ("bitfit-", [], "has no size"),
        ("layernorm-1", [], "has no size"),
        ("full-12", [], "has no size"),
        ("features-8", [], "has no size"),
        ("features-mix-2", [], "has no size"),
        ("full", ["layers=3"], "it has no options"),
        ("lora", ["rang=3"], "no option 'rang'; its options are: rank, alpha"),
        ("lora", ["targets=nowhere"], "expected one of: query"),
        ("lora", ["targets="], "has no targets"),
        ("lora", ["layers=a"], "is not valid"),
        ("lora", ["layers=-1"], "is not valid"),
        ("lora", ["layers=all"], "layers such as 0-3,5, or all-but-last, was expected"),
        ("lora", ["dropout=1"], "below 1"),
        ("lora", ["rank"], "is not KEY=VALUE"),
        ("pal", ["dropout=-0.1"], "below 1"),
        ("pal", ["norms=maybe"], "yes or no was expected"),
        ("bitfit", ["sites=pooler"], "expected one of"),
        ("houlsby", ["activation=selu"], "expected one of"),
        ("houlsby", ["std=nan"], "too small"),
        ("lt-sft", ["entries=0"], "entries 0 is too small"),
        ("lt-sft", ["rounds=0"], "too small"),
    ],
)
def test_what_cannot_be_is_explained(text: str, options: list[str], message: str) -> None:
    with pytest.raises(IntarsiaError) as caught:
        parse(text, options)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", [*WRITTEN.values(), *(m for _, _, m in OPTIONS)], ids=str)
def test_configs_survive_json(method: Method) -> None:
    again = from_dict(json.loads(json.dumps(to_dict(method))))
    assert again == method and hash(again) == hash(method) and running_key(again) == running_key(method)


@pytest.mark.parametrize(
    "stored",
    [{}, {"type": "none"}, {"type": 3}, {"type": "lora", "rang": 3}, {"type": "lora", "rank": "many"}],
    ids=str,
)
def test_configs_that_cannot_be_are_explained(stored: dict[str, object]) -> None:
    with pytest.raises(IntarsiaError):
        from_dict(stored)


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_every_method_describes_itself_and_its_recipe_is_valid(kind: type[Method]) -> None:
    method = kind()
    assert METHODS[kind.name] is kind and kind.paper and kind.trains
    assert {*kind.training_only, *kind.newer} <= {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert Settings.for_method(method, seed=None, learning_rate=0.25).learning_rate == 0.25
    settings = Settings.for_method(method)
    for option, value in kind.recipe.items():
        assert getattr(settings.adam if option in ("eps", "bias_correction") else settings, option) == value


@pytest.mark.parametrize(
    "text",
    [
        "houlsby-64", "single-8", "attention-only-8", "parallel-16", "pfeiffer", "pfeiffer-24", "bapna-64", "pal-204",
        "lora-4", "dora-4", "ia3", "prefix-16", "bitfit", "layernorm", "lt-sft-0.5%", "diff-pruning-1%", "top-2",
        "full", "features", "features-mlp-256", "features-mix",
    ],
)  # fmt: skip
def test_the_short_name_is_what_was_written(text: str) -> None:
    assert short_name(to_dict(parse(text))) == text


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if not preset.alias])
def test_the_short_name_of_a_preset_is_its_own(name: str) -> None:
    short = short_name(to_dict(parse(name)))
    assert parse(short) == parse(name) and (short == name or short.startswith(f"{name}-"))
