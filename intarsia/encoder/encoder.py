"""The frozen base: attaching to it, running it, and checking that its weights do not change."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from intarsia.encoder import int8_probe, onednn, pass_threads
from intarsia.encoder import proof as proofs
from intarsia.encoder.attach import attach
from intarsia.encoder.compiled import CompiledLayers
from intarsia.encoder.frozen import FrozenLinear
from intarsia.encoder.int8 import SERVES_ONLY, Int8Linears
from intarsia.encoder.noise import Noise
from intarsia.encoder.packed import Batch, Segment, pack
from intarsia.encoder.proof import Proof
from intarsia.encoder.routed import Group, Pass
from intarsia.encoder.shape import Shape, first_position
from intarsia.encoder.sites import family_of, places
from intarsia.encoder.sources import EMBEDDED, embedded_folder, folder_of, read_model, read_tokenizer
from intarsia.encoder.span import LayerSpan
from intarsia.encoder.spec import BaseTensor
from intarsia.encoder.static_shape import StaticBatch
from intarsia.encoder.tokenizing import Tokenizing
from intarsia.encoder.word_head import read_word_head
from intarsia.errors import EncoderError, PrecisionError
from intarsia.memory import keep_freed_memory

_INT8_TOLERANCE = 0.05  # for the compiled layers in int8: a number that lies between two bytes may take either
_TOLERANCE = 1e-4  # for the self-check after attaching: float32 rounding, with room for other kernels


class Encoder:
    """A frozen pretrained transformer with its tokenizer.

    `Encoder.load` loads `"minilm"`, a folder, or a hub name. `Encoder(model, tokenizer, name=…)` wraps a loaded
    `transformers` model. It replaces submodules of that model, so the model must not be used elsewhere afterwards.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str, proof: Proof | None = None) -> None:
        """`proof`: what was found when the files that the model was just loaded from were hashed before."""
        self.name = name
        device, dtype = str(model.device), model.dtype
        model.to("cpu", torch.float32)  # for the self-check; the end of `__init__` moves it back
        self.model, self.tokenizer = model, tokenizer
        self.family = family_of(model.config)
        self.shape = Shape.of_model(model)
        self._places = tuple(places(self.family, model))
        self._weights: dict[str, Tensor] = dict(model.named_parameters())
        self.fingerprint = self._current_fingerprint = proof.fingerprint if proof else fingerprint(self._weights)
        self.tokenizer_fingerprint = proof.tokenizer if proof else _tokenizer_fingerprint(tokenizer)
        self.first_position = first_position(model.config)
        self.max_length = _max_length(self.shape.positions, tokenizer)
        self.hidden_dropout = _hidden_dropout(model)
        self.tokenizing = Tokenizing(tokenizer, types=self.family.token_types)
        self.checkpoint: str | None = None  # the source it was loaded from
        self._lock = threading.RLock()
        self._int8 = False
        self._compiled: CompiledLayers | bool | None = None  # False: not yet known
        model.eval()
        expected = self._plain_states()
        self.switchboard = attach(model, self.family)
        attached_names = {id(p): name for name, p in model.named_parameters()}
        self._attached = {name: attached_names[id(p)] for name, p in self._weights.items()}
        self._check_attached(expected)
        self._write_counts = self._count_writes()
        self._compiled = False
        if (device, dtype) != ("cpu", torch.float32):
            self.to(device, dtype)

    @classmethod
    def load(
        cls, name_or_folder: str | Path = EMBEDDED, *, device: str = "cpu", precision: str | None = None
    ) -> Encoder:
        """Load a base: `minilm` (the embedded one), a `transformers` folder, or a hub name.

        `precision` is bf16, float32 or int8. The default is bf16 on GPUs that support it, and float32 elsewhere. int8
        is for serving on CPUs, and raises an error on processors where a trial shows that it does not work or pay.
        """
        dtype = _precision(precision, device)
        source = str(name_or_folder)
        folder = embedded_folder() if source == EMBEDDED else folder_of(source)
        before = {} if folder is None else proofs.stamps(folder)
        proof = None if folder is None else proofs.find(folder)
        model = read_model(source, folder)
        tokenizer = read_tokenizer(source, folder)
        # The name of a folder is its absolute path, so that a bank finds it from any working directory.
        name = source if source == EMBEDDED or folder is None else str(folder.resolve())
        encoder = cls(model, tokenizer, name=name, proof=proof)
        if folder is not None and proof is None:
            proofs.store(folder, before, encoder.fingerprint, encoder.tokenizer_fingerprint)
        encoder.checkpoint = str(folder or source)
        if precision == "int8":
            encoder.use_int8()
        return encoder if device == "cpu" and dtype == torch.float32 else encoder.to(device, dtype)

    def to(self, device: str | None = None, dtype: torch.dtype | None = None) -> Encoder:
        """Move the base or change its precision. `fingerprint` keeps describing the loaded weights."""
        self.use_int8(False)
        self.model.to(device=device, dtype=dtype)  # in place: `_weights` keeps naming the parameters
        self._current_fingerprint = fingerprint(self._weights) if dtype is not None else self._current_fingerprint
        self._write_counts = self._count_writes()
        self._compiled = False
        return self

    def use_int8(self, on: bool = True) -> None:
        """Compute the linear layers of the base in dynamic int8, or in float32 again. Only for serving on CPUs.

        The float32 weights and `fingerprint` do not change. Raises if int8 does not work or pay on this processor.
        """
        if on and (self.device.type, self.dtype) != ("cpu", torch.float32):
            raise PrecisionError("int8 needs a float32 base on a CPU. Load the base with precision='int8'.")
        linears = self._linears()
        if on:
            int8_probe.require(linears, self.name)
            keep_freed_memory()
        with self._lock:
            shared, self._int8 = (Int8Linears(), True) if on else (None, False)
            self._compiled = False
            for linear in linears:
                linear.int8 = shared

    @property
    def compiled(self) -> CompiledLayers | None:
        """All layers as one compiled function; None if this base or this machine cannot have it."""
        if isinstance(self._compiled, bool):
            with self._lock:
                found = None
                if (self.device.type, self.dtype) == ("cpu", torch.float32):
                    found = CompiledLayers.of(self.model, self.switchboard.modules, self.shape, int8=self._int8)
                self._compiled = found if found is not None and self._agrees(found) else None
        assert not isinstance(self._compiled, bool)
        return self._compiled

    def _agrees(self, compiled: CompiledLayers) -> bool:
        """Return whether the compiled layers compute what the layers compute in PyTorch."""
        batch = pack(self._probe())
        with torch.no_grad():
            expected = self.forward(batch)
            error = float((self._pass(Pass(batch, (), compiled=compiled), {}) - expected).abs().max())
        tolerance = _INT8_TOLERANCE if self._int8 else _TOLERANCE
        return error <= tolerance * max(1.0, float(expected.abs().max()))

    def _linears(self) -> list[FrozenLinear]:
        """Return the linear layers of the base, without its pooler."""
        pooler = f"{self.family.pooler}."
        named = self.model.named_modules()
        return [m for name, m in named if isinstance(m, FrozenLinear) and not f"{name}.".startswith(pooler)]

    def check_trains(self) -> None:
        """Raise if this base serves only."""
        if self.precision == "int8":
            raise PrecisionError(SERVES_ONLY)

    @property
    def precision(self) -> str:
        """How the linear layers of the base compute: float32, bf16 or int8."""
        if self._int8:
            return "int8"
        return {torch.bfloat16: "bf16", torch.float32: "float32"}.get(
            self.dtype, str(self.dtype).removeprefix("torch.")
        )

    def __sklearn_clone__(self) -> Encoder:
        """Copies of an estimator share their base: scikit-learn asks this before it copies a parameter."""
        return self

    @property
    def device(self) -> torch.device:
        return next(iter(self._weights.values())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self._weights.values())).dtype

    @property
    def description(self) -> dict[str, Any]:
        """The fields that a bank, an inlay or a result stores about its base."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "tokenizer": self.tokenizer_fingerprint,
            "parameters": self.shape.parameters,
        }

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The frozen weights by their names in the `transformers` model. Do not write to them."""
        return self._weights

    def at_site(self, site: str, layer: int, kind: str) -> BaseTensor:
        """Return the frozen `weight` or `bias` at a site or of the pooler, with its parameter name and rows."""
        if site == "pooler":
            name = f"{self.family.pooler}.{kind}"
        else:
            place = next(p for p in self._places if site in p.sites and layer in p.layers)
            name = f"{place.path}.{kind}"
        whole = self._weights[name]
        rows = slice(0, whole.shape[0])
        if self.family.fused_query_key_value and site in (fused := ("query", "key", "value")):
            third = whole.shape[0] // 3
            rows = slice(fused.index(site) * third, (fused.index(site) + 1) * third)
        return BaseTensor(name, rows, whole if rows.stop - rows.start == whole.shape[0] else whole[rows])

    @property
    def pooler(self) -> tuple[Tensor, Tensor] | None:
        """The weight and bias of the base's pooler, or None if it has no pooler."""
        if not self.shape.pooler or self.family.pooler is None:
            return None
        return self._weights[f"{self.family.pooler}.weight"], self._weights[f"{self.family.pooler}.bias"]

    @cached_property
    def word_head(self) -> dict[str, Tensor]:
        """The masked-language-model head of the checkpoint; empty if it has none."""
        return {} if self.checkpoint is None else read_word_head(self.checkpoint, self.family.masked_words)

    def tokenize(
        self, texts: Sequence[str], pairs: Sequence[str | None] | None = None, *, max_length: int | None = None
    ) -> list[Segment]:
        """Return texts (and their pairs) as segments, truncated to `max_length` tokens."""
        limit = min(max_length or self.max_length, self.max_length)
        second = None if pairs is None or all(p is None for p in pairs) else [p or "" for p in pairs]
        special = getattr(self.tokenizer, "num_special_tokens_to_add", lambda pair: 0)(pair=second is not None)
        if limit <= special:  # tokenizers do not truncate below this length
            raise EncoderError(
                f"max_length {limit} leaves no room for words beside {special} special tokens. Raise it."
            )
        segments = self.tokenizing(texts, second, limit)
        if self._tokens_without_embedding:
            self._check_ids(segments)
        return segments

    @cached_property
    def _tokens_without_embedding(self) -> bool:
        """Whether the tokenizer has more tokens than the model has embeddings."""
        size = getattr(self.tokenizer, "__len__", lambda: 0)()
        return bool(size > self.model.config.vocab_size)

    def _check_ids(self, segments: Sequence[Segment]) -> None:
        size = self.model.config.vocab_size
        for segment in segments:
            if (largest := max(segment.ids, default=0)) >= size:
                token = self.tokenizer.convert_ids_to_tokens(largest)
                raise EncoderError(
                    f"a text has the token {token!r} with the id {largest}, but the base has {size} word embeddings. "
                    "The tokenizer is of another model, or tokens were added to it: use the model's own tokenizer."
                )

    def forward(
        self,
        batch: Batch | StaticBatch,
        groups: Sequence[Group] = (),
        *,
        training: bool = False,
        noise: Noise | None = None,
        padded: bool = False,
        weights: Mapping[str, Tensor] | None = None,
        above: tuple[int, Tensor] | None = None,
        compiled: bool = False,
    ) -> Tensor:
        """Return the last hidden states [N, d] of a packed batch.

        The rows of `groups` run through their inlays; other rows run through the plain base. `weights` replace the
        base's weights of the same names in this pass only; the base is never written to. `noise` turns on the base's
        dropout. `padded` uses one padded block instead of the packed layout; it computes the same values, as a
        reference for tests. `above` is (layer, the states [N, d] that enter it): the pass then skips the layers below.
        `compiled` computes the layers by `self.compiled`, without gradients.
        """
        if training:
            self.check_trains()
        span = LayerSpan() if above is None else LayerSpan.above(self._checked_layer(above[0]), above[1], batch, padded)
        layers = self.compiled if compiled else None
        current = Pass(batch, groups, noise=noise, training=training, padded=padded, span=span, compiled=layers)
        return self._pass(current, weights or {})

    @torch.no_grad()
    def states_below(self, batch: Batch, layer: int, groups: Sequence[Group] = (), *, compiled: bool = False) -> Tensor:
        """Return the states [N, d] that enter a layer, without dropout, as `forward` computes them. Skips the layers
        above."""
        span = LayerSpan(end=self._checked_layer(layer))
        self._pass(Pass(batch, groups, span=span, compiled=self.compiled if compiled else None), {})
        assert span.entered is not None
        return span.entered.reshape(batch.tokens, -1)

    def _checked_layer(self, layer: int) -> int:
        if not 0 <= layer < self.shape.layers:
            raise ValueError(f"there is no layer {layer}: this base has layers 0 to {self.shape.layers - 1}")
        return layer

    def threads(self, tokens: int) -> AbstractContextManager[None]:
        """Choose the threads of a pass with this many tokens: see `pass_threads.py`."""
        by_onednn = self.device.type == "cpu" and self.dtype == torch.float32 and onednn.available()
        if not by_onednn or torch.is_grad_enabled():
            return nullcontext()
        return pass_threads.of_pass(tokens * self.shape.width)

    def _pass(self, current: Pass, weights: Mapping[str, Tensor]) -> Tensor:
        with self._lock, self.threads(current.batch.tokens):
            self.switchboard.current = current
            try:
                return self._run(current, weights)
            finally:
                self.switchboard.current = None

    def layer_states(self, batch: Batch) -> list[Tensor]:
        """Return the states [N, d] of the plain base after each layer. The last entry is the output of `forward`."""
        outputs: list[Tensor] = []
        with self._lock:
            self.switchboard.on_layer_output = outputs.append
            try:
                last = self.forward(batch)
            finally:
                self.switchboard.on_layer_output = None
        return [*(h.reshape(-1, h.shape[-1]) for h in outputs[:-1]), last]

    def _positions(self, current: Pass) -> Tensor:
        """Return the position of each token [N] in the base's table of positions."""
        positions = current.batch.positions + self.first_position
        for group in current.groups:
            if not (offset := group.method.position_offset):
                continue
            batch, last = current.packed, group.first + sum(group.rows)
            longest = max(batch.lengths[group.first : last], default=0)
            if longest + offset > self.shape.positions:
                raise EncoderError(
                    f"a text has {longest} tokens, which begin at position {offset}; this base has "
                    f"{self.shape.positions} positions. Cut texts at {self.shape.positions - offset} tokens."
                )
            positions[batch.offsets[group.first] : batch.offsets[last]] += offset
        return positions

    def _run(self, current: Pass, weights: Mapping[str, Tensor]) -> Tensor:
        batch, padded, positions = current.batch, current.padded, self._positions(current)
        inputs = {"input_ids": batch.ids, "position_ids": positions}
        if self.family.token_types:
            inputs["token_type_ids"] = batch.types
        if padded:
            assert isinstance(batch, Batch)
            shape = (batch.rows, batch.whole.length)
            inputs = {k: v.index_select(0, batch.whole.tokens).view(shape) for k, v in inputs.items()}
            mask = (~batch.whole.padding).to(torch.long)
        else:
            inputs = {k: v[None] for k, v in inputs.items()}
        if self.family.attention_mask:
            inputs["attention_mask"] = mask if padded else torch.ones_like(batch.ids)[None]
        if current.compiled is not None:
            states = self._with_compiled(current, current.compiled, inputs)
        elif weights:
            replaced = {self._attached[name]: tensor for name, tensor in weights.items()}
            states = functional_call(self.model, replaced, (), inputs).last_hidden_state
        else:
            states = self.model(**inputs).last_hidden_state
        flat = states.reshape(-1, states.shape[-1])
        return flat.index_select(0, batch.unpad) if padded and isinstance(batch, Batch) else flat

    def _with_compiled(
        self, current: Pass, layers: Callable[[Pass, Tensor], Tensor], inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the states [1, N, d] after the layers of the pass, whose embeddings run in PyTorch."""
        span = current.span
        states = span.given
        if states is None:
            states = self.model.embeddings(**inputs)
            if (project := getattr(self.model, "embeddings_project", None)) is not None:  # ELECTRA, where widths differ
                states = project(states)
        states = layers(current, states)
        if span.end is not None:
            span.entered = states
        return states

    def check_untouched(self) -> None:
        """Raise if PyTorch wrote to or replaced a weight of the base. Fast; does not see writes that bypass PyTorch."""
        if self._write_counts != (now := self._count_writes()):
            changed = next(name for name, count in now.items() if self._write_counts.get(name) != count)
            raise EncoderError(
                f"the frozen base {self.name} has changed: its weight {changed} was written to. "
                "Discard the inlays that this process trained, and load the base again."
            )

    def _count_writes(self) -> dict[str, tuple[int, int]]:
        """Return the address and PyTorch's write counter of every weight."""
        return {name: (weight.data_ptr(), weight._version) for name, weight in self._weights.items()}

    def check_frozen(self) -> None:
        """Raise unless every weight of the base is bit for bit equal to the loaded weight."""
        now, expected = fingerprint(self._weights), self._current_fingerprint
        if now != expected:
            raise EncoderError(
                f"the frozen base {self.name} has changed: its fingerprint was {expected} and is {now}. "
                "Discard the inlays that this process trained, and load the base again."
            )

    def _probe(self) -> list[Segment]:
        """Return a few short segments for the self-check."""
        top = min(self.model.config.vocab_size, 100)
        lengths = (3, 1, min(7, self.max_length))
        return [Segment([(5 * i + j + 7) % top for j in range(n)], [0] * n) for i, n in enumerate(lengths)]

    def _plain_states(self) -> Tensor:
        """Return the output of the unmodified model for the padded probe."""
        rows = self._probe()
        longest = max(len(r.ids) for r in rows)
        pad = self.model.config.pad_token_id or 0
        ids = torch.tensor([[*r.ids, *[pad] * (longest - len(r.ids))] for r in rows])
        lengths = torch.tensor([len(r.ids) for r in rows])[:, None]
        mask = (torch.arange(longest)[None] < lengths).long()
        with torch.no_grad():  # without position ids, to check ours against the model's
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return states[mask.bool()]

    def _check_attached(self, expected: Tensor) -> None:
        """Raise unless the attached, packed model without methods computes the output of the plain model."""
        with torch.no_grad():
            states = self.forward(pack(self._probe()))
        error = float((states - expected).abs().max())
        if not error <= _TOLERANCE * max(1.0, float(expected.abs().max())):
            import transformers

            raise EncoderError(
                f"attaching to {self.name} (family {self.model.config.model_type}) changed its outputs by {error:.2e}: "
                f"this version of transformers ({transformers.__version__}) computes this family in another way than "
                "intarsia/encoder/sites.py expects. Try a version named in docs/add-a-family.md."
            )


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of the weights, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _precision(given: str | None, device: str) -> torch.dtype:
    """Return the dtype for a precision option on a device; raise if either is not available."""
    known = {"bf16": torch.bfloat16, "float32": torch.float32, "int8": torch.float32}
    if given is not None and given not in known:
        raise PrecisionError(f"the precision {given!r} is not known; expected one of: {', '.join(known)}.")
    try:
        number = torch.device(device).index or 0
    except RuntimeError as error:
        raise PrecisionError(f"the device {device!r} is not known; expected cpu, cuda or cuda:1.") from error
    if not device.startswith("cuda"):
        if given == "bf16":
            raise PrecisionError("bf16 needs a GPU; on CPUs the base computes in float32. Omit --precision.")
        return torch.float32
    if given == "int8":
        raise PrecisionError("int8 is for CPUs; on GPUs the base computes in bf16 or float32. Omit --precision.")
    if not torch.cuda.is_available():
        raise PrecisionError(
            f"the device {device!r} is not available: PyTorch finds no GPU. Use --device cpu, or install a build of "
            "PyTorch with CUDA on a machine with a GPU."
        )
    if number >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise PrecisionError(f"there is no {device}: this machine has {count} GPU(s), numbered from cuda:0.")
    if given is not None:
        return known[given]
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32


def _tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's content, or "" without a tokenizer."""
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # Truncation and padding belong to a call, not to the tokenizer.
        import json

        content = json.loads(backend.to_str())
        content["truncation"] = content["padding"] = None
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return hashlib.sha256("\n".join(sorted(tokenizer.get_vocab())).encode()).hexdigest()


def _max_length(positions: int, tokenizer: Any) -> int:
    limits = [positions]
    if tokenizer is not None and tokenizer.model_max_length < 10**6:
        limits.append(tokenizer.model_max_length)
    return int(min(limits))


def _hidden_dropout(model: Any) -> float:
    config = model.config
    for name in ("hidden_dropout_prob", "dropout", "mlp_dropout"):
        if hasattr(config, name):
            return float(getattr(config, name))
    return 0.0
