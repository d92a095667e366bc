"""The tensors of a peft file by the modules that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from intarsia.errors import ExchangeError
from intarsia.exchange.accounting import Weights
from intarsia.exchange.modules import Modules
from intarsia.methods import Method

ROOT = "base_model.model."


@dataclass
class Read:
    """What the reader of one peft method returns."""

    method: Method
    tensors: Mapping[str, Tensor]
    folded: tuple[str, ...] = ()
    pooler: dict[str, Tensor] = field(default_factory=dict)  # changed weight and bias of the base's pooler
    longest: int | None = None  # tokens of a text


class PeftTensors:
    """Names are `base_model.model.` + the path of a module in the task class + the name of the tensor."""

    def __init__(self, weights: Weights, modules: Modules, saved: tuple[str, ...] = (), head_root: str = ROOT) -> None:
        self.weights, self.modules, self.saved, self._head_root = weights, modules, saved, head_root
        prefixed = any(name.startswith(f"{ROOT}{modules.prefix}.") for name in weights)
        self._before = f"{modules.prefix}." if prefixed else ""

    def path(self, module: str) -> str:
        """Return the path of a module of the base in the other library's model, as its patterns see it."""
        return self._before + module

    def name(self, module: str, tensor: str) -> str:
        return f"{ROOT}{self._before}{module}.{tensor}"

    def take(self, module: str, tensor: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Take a tensor of a module of the base."""
        return self.weights.take(self.name(module, tensor), shape)

    def head_name(self, module: str) -> str:
        return self._head_root + module

    def having(self, tensor: str) -> Iterator[str]:
        """Yield the modules of the base that have a tensor of this name."""
        for module in self.modules.with_weights:
            if self.name(module, tensor) in self.weights:
                yield module

    def pooler(self, found: Read) -> dict[str, Tensor] | None:
        """Return the weight and bias of the pooler, if the adapter changes them or saves the pooler as a module."""
        path = self.modules.pooler
        if path is None:
            return None
        own = dict(found.pooler)
        for kind in ("weight", "bias"):
            names = (self.name(path, kind), self.head_name(f"{self.modules.prefix}.{path}.{kind}"))
            stored = self.weights.take_if(next((name for name in names if name in self.weights), names[0]))
            if stored is not None:
                if kind in own:
                    raise ExchangeError(f"{self.weights.where} has two different {kind}s of the pooler {path}.")
                own[kind] = stored
        if not own:
            return None
        base = {"weight": self.modules.weight(path), "bias": self.modules.bias(path)}
        whole = {kind: own.get(kind, tensor) for kind, tensor in base.items() if tensor is not None}
        return {kind: tensor.detach().float().cpu().clone() for kind, tensor in whole.items()}
