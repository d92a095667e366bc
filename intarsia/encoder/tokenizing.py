"""Texts to segments, from any number of threads.

A fast tokenizer of `transformers` changes its own truncation in every call, which is not safe in two threads. Here each
maximum length has a copy of its own that never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from intarsia.encoder.packed import Segment


class Tokenizing:
    """The tokenizer of one base."""

    def __init__(self, tokenizer: Any, *, types: bool) -> None:
        """`types`: the base reads token types."""
        self.tokenizer, self.types = tokenizer, types
        self._backends: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None, limit: int) -> list[Segment]:
        """Return one segment for each text (and its pair), of at most `limit` tokens."""
        backend = self._backend(limit)
        if backend is None:
            return self._slowly(texts, pairs, limit)
        encodings = backend.encode_batch_fast(list(texts) if pairs is None else list(zip(texts, pairs, strict=True)))
        types = self.types
        return [
            Segment(
                e.ids,
                e.type_ids if types else None,
                truncated=bool(e.overflowing),
                second=None if pairs is None else second_text(e.sequence_ids),
            )
            for e in encodings
        ]

    def with_options(self, *texts: Any, **options: Any) -> Any:
        """Call the tokenizer of `transformers` itself, with options that change its state."""
        with self._lock:
            return self.tokenizer(*texts, **options)

    def _backend(self, limit: int) -> Any:
        """Return the tokenizer that truncates to `limit` tokens; None if this tokenizer has no fast form."""
        backend = self._backends.get(limit)
        if backend is None:
            with self._lock:
                if limit not in self._backends:
                    self._backends[limit] = self._copy(limit)
                backend = self._backends[limit]
        return backend or None

    def _copy(self, limit: int) -> Any:
        fast = getattr(self.tokenizer, "_tokenizer", None)
        if fast is None or not getattr(self.tokenizer, "is_fast", False) or not hasattr(fast, "encode_batch_fast"):
            return False
        copy = type(fast).from_str(fast.to_str())
        side = getattr(self.tokenizer, "truncation_side", "right")
        copy.enable_truncation(limit, stride=0, strategy="longest_first", direction=side)
        copy.no_padding()
        return copy

    def _slowly(self, texts: Sequence[str], pairs: Sequence[str] | None, limit: int) -> list[Segment]:
        with self._lock:
            second = None if pairs is None else list(pairs)
            out = self.tokenizer(list(texts), second, truncation=True, max_length=limit, return_attention_mask=False)
            longer = self.tokenizer(list(texts), second, truncation=False, return_attention_mask=False)
        types = out.get("token_type_ids") if self.types else None
        return [
            Segment(
                ids,
                types[i] if types else None,
                truncated=len(longer["input_ids"][i]) > len(ids),
                second=second_text(out.sequence_ids(i)) if pairs is not None and out.is_fast else None,
            )
            for i, ids in enumerate(out["input_ids"])
        ]


def second_text(sides: Sequence[int | None]) -> int | None:
    """Return the first token of the second text, given the text of each token; None: there is no such token."""
    return sides.index(1) if 1 in sides else None
