"""Every method of the registry, small enough for the tiny bases: tests need no list of their own."""

from __future__ import annotations

import dataclasses

from intarsia.encoder.sites import LINEAR_SITES
from intarsia.methods import PRESETS, Bottleneck, DoRA, LoRA, Method, Pfeiffer, Prefix, parse

SIZES = {"pal": "8", "top": "1"}  # where neither 5 nor a share of 2 % will do
OPTIONS = {"pal": ["heads=4"]}


def _small(name: str) -> Method:
    plain = parse(name)
    fields = {f.name: str(f.type) for f in dataclasses.fields(plain)}  # type: ignore[arg-type]
    size = PRESETS[name].size
    sized = "" if size is None else f"-{SIZES.get(name, '2%' if fields[size] == 'float' else '5')}"
    everywhere = [f"targets={','.join(LINEAR_SITES)}"] if "targets" in fields else []
    return parse(name + sized, [*OPTIONS.get(name, []), *everywhere])


SMALL: dict[str, Method] = {name: _small(name) for name, preset in PRESETS.items() if not preset.alias}

# Forms of methods that adapters of other libraries need, or that act at other sites than the plain method.
FORMS: dict[str, Method] = {
    "lora-biases": LoRA(4, targets=("query", "ffn.up"), biases="targets"),
    "lora-all-biases": LoRA(4, layers=(0, 2), biases="all"),
    "prefix-offset": Prefix(4, offset=4),
    "dora-all-biases": DoRA(4, targets=("key", "ffn.down"), biases="all"),
    "houlsby-invertible": Bottleneck(5, invertible=True),
    "pfeiffer-invertible": Pfeiffer(5, layers="all-but-last", invertible=True, invertible_reduction=3),
}
