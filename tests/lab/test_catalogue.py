"""The list of methods: figures that are right on every family, an honest estimate, and a table that fits."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from intarsia.cli.lab_tables import WIDTH, methods_table
from intarsia.encoder import onednn
from intarsia.encoder.shape import Shape
from intarsia.lab import catalogue as listing
from intarsia.lab import cost
from intarsia.lab.catalogue import Catalogue, catalogue, mergeable, shape_of, sized_name
from intarsia.methods import PRESETS, DiffPruning, LoRA, parse
from intarsia.train.step import step_together
from tests.support.families import FAMILY_NAMES, config, save_tiny, tiny_with_words
from tests.support.small_methods import SMALL


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("base"))


def lines(found: Catalogue) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, width=200)
    for part in methods_table(found):
        console.print(part, soft_wrap=True, markup=False) if isinstance(part, str) else console.print(part)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_every_preset_is_listed_with_its_size(base: str) -> None:
    found = catalogue(base)
    names = [m.name for m in found.methods]
    assert len(names) == len(PRESETS) - 1 and not any(name.startswith("bottleneck") for name in names)
    assert {"houlsby-64", "pfeiffer-2", "lora-8", "lt-sft-0.5%", "top-2", "pal-204", "features-mlp-256", "ia3"} <= {
        *names
    }
    shape = shape_of(base)
    for m in found.methods:
        assert m.parameters == parse(m.name).count(shape) and m.reason is None
        assert m.share == pytest.approx(m.parameters / found.parameters)
        assert m.paper and m.trains
    trains = {m.name: m.trains for m in found.methods}
    assert trains["single-64"] != trains["houlsby-64"] != trains["parallel-64"]
    assert not next(m for m in found.methods if m.name == "full").mixable


def test_the_shape_comes_from_the_configuration_alone(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.encoder.encoder import Encoder

    loaded = Encoder.load(base).shape
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: pytest.fail("the weights were loaded"))
    assert shape_of(base) == loaded


def test_a_checkpoint_without_a_pooler_is_counted_without(tmp_path: Any) -> None:
    from transformers import BertModel

    small = config("bert")
    BertModel(small, add_pooling_layer=False).save_pretrained(tmp_path)
    assert not shape_of(tmp_path).pooler and Shape.of(small).pooler


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_table_fits_and_gives_reasons(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape.of(config(family))
    monkeypatch.setattr(listing, "shape_of", lambda _: shape)
    found = catalogue("a/base")
    text = lines(found)
    assert max(len(line) for line in text) <= WIDTH
    for m in found.methods:
        assert any(line.startswith(m.name) for line in text)
        if m.reason is None:
            assert m.step is not None and m.parameters == parse(m.name).count(shape)
        else:
            assert m.parameters is None and any(line.startswith(f"{m.name}: ") for line in text)
    refused = {m.name.partition("-")[0] for m in found.methods if m.reason is not None}
    expected = {"modernbert": {"pfeiffer", "bitfit"}, "albert": {"top"}, "deberta-v2": {"prefix"}}
    assert refused == expected.get(family, set())


def test_what_can_be_merged_depends_on_the_base() -> None:
    shapes = {family: Shape.of(config(family)) for family in ("bert", "albert", "deberta-v2")}
    assert {family: mergeable(LoRA(), shape) for family, shape in shapes.items()} == {
        "bert": True, "albert": False, "deberta-v2": False,
    }  # fmt: skip
    assert mergeable(LoRA(targets=("value",)), shapes["deberta-v2"]) and mergeable(DiffPruning(), shapes["albert"])


def multiply_adds(run: Any) -> int:
    """Those of a step with matrices (not of attention, which multiplies in batches), counted by PyTorch."""

    def in_place(_: Any, a: Any, b: Any, *__: Any, **___: Any) -> int:
        return int(2 * a[0] * a[1] * b[1])

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place}) as counter:
        step_together([(run, range(cost.ROWS))])[0]
    counted = counter.get_flop_counts()["Global"]
    return sum(number for operation, number in counted.items() if str(operation).startswith(("aten.mm", "aten.addmm")))


def test_the_estimate_is_what_a_step_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "available", lambda: False)  # products that PyTorch's counter knows
    encoder = tiny_with_words()
    full = multiply_adds(cost._run(encoder, parse("full")))
    estimated = {name: method for name, method in SMALL.items() if not method.cached and name != "pal"}
    for name, method in estimated.items():
        counted = multiply_adds(cost._run(encoder, method)) / full
        assert cost.estimate(method, encoder.shape) == pytest.approx(counted, rel=0.03), name
    assert cost.estimate(parse("features"), encoder.shape) == 0
    # The matrices that all layers share are met in each of them; three layers here.
    pal = parse("pal-24")
    own = 3 * 2 * 24 * 32 + 3 * 3 * 24 * 24
    whole = sum(n.inputs * n.outputs for n in encoder.shape.linears)
    assert cost.estimate(pal, encoder.shape) == pytest.approx((2 * whole + 3 * own) / (3 * whole))


def test_steps_are_timed_beside_full_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tiny_with_words()
    monkeypatch.setattr(listing, "PRESETS", {name: PRESETS[name] for name in ("lora", "lt-sft", "full", "features")})
    seen: list[str] = []
    found = catalogue(encoder, measure=True, watch=seen.append)
    assert seen == ["lora", "lt-sft", "full", "features"] and found.measured
    assert all(m.step and m.step_seconds for m in found.methods)
    assert 0.5 < next(m.step or 0 for m in found.methods if m.name == "full") < 2
    assert any("measured" in line for line in lines(found)) and encoder.check_frozen() is None


def test_names_carry_the_size_that_the_base_gives() -> None:
    shape = Shape.of(config("bert", hidden_size=64))
    assert sized_name("pfeiffer", shape) == "pfeiffer-4" and sized_name("features", shape) == "features"
