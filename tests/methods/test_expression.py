"""Compositions as written on the command line."""

from __future__ import annotations

import pytest

from intarsia import Average, Fuse, LoRA, Pfeiffer, Split, Stack
from intarsia.errors import IntarsiaError
from intarsia.methods import Method, as_method, full_name, parse, short_name, to_dict
from intarsia.methods.expression import separated
from intarsia.tasks import load_data
from intarsia.train.grid import Grid
from tests.support.families import opinions

WRITTEN: dict[str, Method] = {
    "stack(medical, pfeiffer-48)": Stack("medical", Pfeiffer(48)),
    " Stack( medical@2,pfeiffer-48 ,residual = paper ) ": Stack("medical@2", Pfeiffer(48), residual="paper"),
    "fuse(a, b, static=true)": Fuse("a", "b", static=True),
    "fuse(a, stack(b, lora-4 alpha=3 targets=[query,key])) static=yes": Fuse(
        "a", Stack("b", LoRA(4, alpha=3.0, targets=("query", "key"))), static=True
    ),
    "average(a, b, weights=[0.25,0.75])": Average("a", "b", weights=(0.25, 0.75)),
    "split(lora-de, lora-4)": Split("lora-de", LoRA(4)),  # a name that is no size is a task
    "stack(lora@1, lora layers=[0,2])": Stack("lora@1", LoRA(layers=(0, 2))),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_written_is_what_is_meant(text: str) -> None:
    assert parse(text) == as_method(text) == WRITTEN[text]


def test_the_names_in_listings_can_be_written() -> None:
    for method in (WRITTEN["stack(medical, pfeiffer-48)"], Fuse("a@2", Stack("b", LoRA(2)), static=True)):
        assert parse(full_name(to_dict(method))) == method
    assert parse("fuse(a, b)", ["static=yes"]) == Fuse("a", "b", static=True)


def test_a_list_of_methods_is_divided_between_compositions() -> None:
    methods = "houlsby-8, stack(a, pfeiffer-4 layers=[0,1]),lora-2"
    assert [*separated(methods, ",")] == ["houlsby-8", "stack(a, pfeiffer-4 layers=[0,1])", "lora-2"]
    jobs = Grid(("stack(a, pfeiffer-4)", "lora-2 alpha=4")).jobs("x", load_data(opinions(20)))
    assert {short_name(to_dict(job.method)) for job in jobs} == {"stack(a, pfeiffer-4)", "lora-2"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("stak(a)", "the composition 'stak' is not known. Did you mean 'stack'"),
        ("(a)", "the composition '' is not known"),
        ("stack(a", "'stack(a': a closing parenthesis is missing"),
        ("stack(a, )", "a part of the composition is empty"),
        ("stack()", "Stack has 0 parts"),
        ("split(a)", "expected two"),
        (
            "stack(a, pfeifer-48 std=1)",
            "'pfeifer-48' is not a method, so std=1 cannot be an option of it. Did you mean",
        ),
        ("stack(a, residul=paper)", "has no option 'residul'; its options are: residual. Did you mean 'residual'"),
        ("stack(a, residual=foo)", "residual 'foo' is not known"),
        ("stack(a, lora-4 rnk=3)", "Did you mean 'rank'"),
        ("split(a, b, x=1)", "the method split has no option 'x'; it has no options"),
        ("fuse(a, static=5)", "yes or no was expected"),
        ("average(a, b, weights=x)", "a list such as [0.3,0.7] was expected"),
        ("stack(" * 20 + "a" + ")" * 20, "more than 8 levels"),
    ],
)
def test_what_cannot_be_is_explained(text: str, reason: str) -> None:
    import re

    with pytest.raises(IntarsiaError, match=re.escape(reason)):
        parse(text)
