"""What the estimators that learn have in common: parameters, fitting, outputs, and the way into a bank and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from intarsia.bank import succession
from intarsia.bank.bank import Bank
from intarsia.bank.entry import Entry
from intarsia.bank.inlay import Inlay
from intarsia.bank.inlay_of import inlay_of
from intarsia.encoder.encoder import Encoder
from intarsia.errors import IntarsiaError
from intarsia.methods import Method, as_method, full_name
from intarsia.serve.scoring import predictions_of
from intarsia.sklearn.bases import base
from intarsia.sklearn.inputs import InvalidInput, check_pairs, check_texts, invalid_input
from intarsia.sklearn.sharing import train_for_fit
from intarsia.tasks.examples import Example, Kind, Label, TaskData
from intarsia.tasks.heads import Pooling
from intarsia.tasks.splits import hold_out
from intarsia.train.job import Job, Settings

NAME = "estimator"  # of the task; `to_bank` gives another


class IntarsiaEstimator(BaseEstimator):
    """An estimator that learns an inlay over a frozen base.

    Parameters
    ----------
    method : str or Method
        The method and its size, such as "houlsby-64" or "lora-8" (`intarsia methods` lists them).
    encoder : str, path, Encoder or None
        The frozen base: a `transformers` folder, a hub name, or a loaded `Encoder`. None: the embedded `minilm`.
    pooling : {"mean", "cls", "pooler", "trained-pooler"}
        The input of the head.
    learning_rate, epochs, batch_size, max_length, patience : number or None
        Settings of the training. None: those of the method's recipe.
    metric : str, function or None
        Chooses the best epoch on the validation rows.
    class_weights : "balanced", mapping or None
        Weights of the labels in the loss.
    dropout : bool
        Whether the base's dropout is on in training. Without it, fits that share passes end as they would alone.
    validation_fraction : float
        The share of the rows that chooses the best epoch and is not trained on. 0: all rows train and choose.
    random_state : int, RandomState or None
        The seed of initial weights, batches, dropout and validation rows.
    device, precision : str
        As in `intarsia.open`.
    """

    _kind: Kind = "label"

    def __init__(
        self,
        method: str | Method = "houlsby-64",
        *,
        encoder: str | Path | Encoder | None = None,
        pooling: str = "mean",
        learning_rate: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        patience: int | None = None,
        metric: Any = None,
        class_weights: Any = None,
        dropout: bool = True,
        validation_fraction: float = 0.1,
        random_state: Any = 0,
        device: str = "cpu",
        precision: str | None = None,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.pooling = pooling
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.max_length = max_length
        self.patience = patience
        self.metric = metric
        self.class_weights = class_weights
        self.dropout = dropout
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.precision = precision

    def _learn(self, texts: Sequence[str | tuple[str, str]], labels: Sequence[Label], names: Sequence[str]) -> None:
        """Train on checked texts and labels; set `inlay_`, which is None in a rehearsal (see sharing.py)."""
        check_pairs(texts)
        seed = self._seed()
        examples = [
            Example(text, None, label) if isinstance(text, str) else Example(*text, label)
            for text, label in zip(texts, labels, strict=True)
        ]
        data = self._data(examples, tuple(names), seed)
        encoder = base(self.encoder, self.device, self.precision)
        with invalid_input():
            method = as_method(self.method)
            settings = Settings.for_task(
                method, data, learning_rate=self.learning_rate, epochs=self.epochs, batch_size=self.batch_size,
                max_length=self.max_length, patience=self.patience, metric=self._metric(), seed=seed,
                class_weights=self.class_weights, dropout=self.dropout,
            )  # fmt: skip
        job = Job(NAME, data, method, cast(Pooling, self.pooling), settings)
        trained = train_for_fit(job, encoder)
        self.inlay_: Inlay | None = None if trained is None else inlay_of(job, trained, encoder)
        self.pairs_ = data.pairs

    def _data(self, examples: list[Example], names: tuple[str, ...], seed: int) -> TaskData:
        """The rows to train on, and those that choose the epoch."""
        share = self.validation_fraction
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise InvalidInput(f"validation_fraction must be at least 0 and below 1, not {share!r}.")
        train, dev = hold_out(examples, share, seed=seed, kind=self._kind) if share else (examples, [])
        dev = dev or examples  # too few rows to hold one out: all of them choose
        source = {
            "from": "memory",
            "columns": {"text": "text", "pair": "pair" if examples[0].pair is not None else None, "label": "label"},
            "rows": {"train": len(train), "dev": len(dev), "test": 0},
            "split": f"{share:g} of the rows of a fit choose the epoch",
            "seed": seed,
        }
        return TaskData(self._kind, names, train, dev, [], source)

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _metric(self) -> Any:
        return self.metric

    def _outputs(self, X: Any) -> np.ndarray:
        """Probabilities [texts, labels], or scores [texts, 1]."""
        check_is_fitted(self, "inlay_")
        texts = check_texts(X)
        check_pairs(texts, self.pairs_)
        if self.inlay_ is None:
            return self._pretended(len(texts))
        encoder = base(self.encoder, self.device, self.precision)
        fitted, given = self.inlay_.encoder["fingerprint"], encoder.fingerprint
        if fitted != given:
            raise IntarsiaError(
                f"this estimator was fitted on the base {self.inlay_.encoder['name']} ({fitted[:12]}…), and encoder= "
                f"names {encoder.name} ({given[:12]}…). Give the base that it was fitted on."
            )
        examples = [Example(text) if isinstance(text, str) else Example(*text) for text in texts]
        max_length = self.inlay_.interface.max_length
        _, outputs = predictions_of(self.inlay_.learned_on(encoder), examples, encoder, max_length=max_length)
        return np.stack(outputs).astype(np.float64)

    def _pretended(self, count: int) -> np.ndarray:
        """Outputs in a rehearsal."""
        return np.zeros((count, 1))

    # Into a bank and back.

    def to_bank(self, bank: Bank | str | Path, name: str) -> Entry:
        """Store what was learned as the newest version of a task, and return its entry."""
        check_is_fitted(self, "inlay_")
        assert self.inlay_ is not None
        opened = bank if isinstance(bank, Bank) else Bank(bank)
        succession.warn_of_changes(opened.store, name, self.inlay_)
        return opened.store.add(replace(self.inlay_, name=name))

    @classmethod
    def from_bank(cls, bank: Bank | str | Path, name: str, version: int | None = None) -> Self:
        """Return a fitted estimator with the served version of a task (or another version)."""
        opened = bank if isinstance(bank, Bank) else Bank(bank)
        inlay = opened.store.load(name, version)
        if inlay.kind != cls._kind:
            raise IntarsiaError(f"{cls.__name__} is for the kind {cls._kind!r}; the task {name!r} is {inlay.kind!r}.")
        made = cls(
            full_name(inlay.method), encoder=inlay.encoder["name"], pooling=inlay.head["pooling"],
            **{option: inlay.training[option] for option in ("learning_rate", "epochs", "batch_size", "max_length")},
            random_state=inlay.training["seed"], device=opened.device, precision=opened.precision,
        )  # fmt: skip
        if opened._encoder is not None:
            made.encoder = opened._encoder
        made.inlay_, made.pairs_ = inlay, bool(inlay.data.get("pairs"))
        made._take_labels(inlay.labels)
        return made

    def _take_labels(self, labels: Sequence[str]) -> None:
        """Set the fitted attributes that name labels."""

    # scikit-learn.

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if isinstance(self.encoder, Encoder):  # a base is not copied: its name finds it again
            state["encoder"] = self.encoder.name
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        tags.non_deterministic = self.random_state is None
        return tags
