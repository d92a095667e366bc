"""Errors that a user can fix.

A bad input (a file, a name, an option) raises an `IntarsiaError`. Its message says what is wrong, where, what was
expected and what to do. The command line prints the message without a traceback and exits with code 2.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import SequenceMatcher, get_close_matches
from numbers import Integral
from typing import Any

DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # modules that pip knows by another name


class IntarsiaError(Exception):
    """A bad input. The message says what is wrong, where, what was expected and what to do."""


class DataError(IntarsiaError):
    """Unusable content in a data file or data folder. The message names the file, row and column."""


class ExchangeError(IntarsiaError):
    """A folder of another library cannot be imported, or an inlay cannot be exported to its format."""


class BankError(IntarsiaError):
    """Unusable content in a bank: a missing task, a damaged file, or an inlay of another base."""


class UnknownTask(BankError):
    """The bank has no task, or no version of a task, by this name."""


class DamagedInlay(BankError):
    """A file of the bank cannot be read, or does not hold what it states."""


class MissingParent(DamagedInlay):
    """An inlay is intact, but the bank no longer has an inlay that it is built on."""


class Misplaced(BankError):
    """A file is intact, but is in the folder of another task, or in a bank over another base."""


class Refused(BankError):
    """The bank is intact and does not allow this: a foreign base, a taken name, a run under way elsewhere."""


class InvalidName(Refused):
    """No task can have this name."""


class StorageError(BankError, OSError):
    """The operating system refused to read or write a file; `errno` is its code. `intarsia.files` raises it."""

    def __str__(self) -> str:
        return str(self.args[0])


class Replaced(BankError):
    """Another process removed or replaced a version before this one could read it: resolve the task again."""


class Overloaded(Refused):
    """More work waits than the limits allow. Nothing of this call was begun; try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTooLong(IntarsiaError):
    """A request has more tokens than the limits allow to wait at once."""


class PassFailed(IntarsiaError):
    """A pass through the base failed for a reason that is not the caller's, such as a lack of memory."""


class EngineClosed(IntarsiaError):
    """The engine answers no more."""


class DeadlineExceeded(IntarsiaError):
    """The time that the caller allowed for a call has passed."""


class EncoderError(IntarsiaError):
    """The base cannot be found, loaded or attached to."""


class ServiceError(IntarsiaError):
    """A service cannot be reached, refuses a key, or fails."""


class IntarsiaWarning(UserWarning):
    """Something that a user should know, although the work goes on: contradictory labels, cut texts, and so on."""


class PrecisionError(EncoderError):
    """The base cannot compute in this precision, or on this device."""


def check_choice(option: str, value: Any, choices: Collection[str]) -> None:
    """Raise unless `value`, given for `option`, is one of the choices."""
    if value not in choices:
        raise IntarsiaError(f"{option} {value!r} is not known; expected one of: {', '.join(choices)}.")


NEAR = 0.6  # similarity of a name that may be meant
FURTHER = 0.15  # a name that is less like than the nearest one, by more than this, is not proposed beside it


def did_you_mean(name: Any, known: Collection[str], *, least: float = NEAR) -> str:
    """A sentence with the known names that look like `name`, with a space before it; empty if none does."""
    close = near_names(str(name), known, least=least)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def near_names(name: str, known: Collection[str], *, least: float = NEAR) -> list[str]:
    """The known names that look most like `name`, at most two, in any case of letters."""
    meant, written = name.casefold(), {other.casefold(): other for other in known}
    close = get_close_matches(meant, written, n=2, cutoff=least)
    alike = [SequenceMatcher(None, other, meant).ratio() for other in close]
    return [written[other] for other, ratio in zip(close, alike, strict=True) if ratio >= alike[0] - FURTHER]


MOST_SEED = 2**63 - 1  # what PyTorch's generators take


def check_seed(seed: int, name: str = "seed", most: int = MOST_SEED) -> None:
    """Raise unless every random generator takes this seed. `name`: what the message calls it."""
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise IntarsiaError(f"{name} must be a whole number, not {seed!r} ({type(seed).__name__}).")
    if not 0 <= seed <= most:
        raise IntarsiaError(f"{name} must be at least 0 and at most {most} (2^{most.bit_length()} - 1), not {seed}.")


def check_extra(extra: str, *modules: str) -> None:
    """Raise unless the modules that an optional extra installs can be found. Long work calls this before it begins."""
    from importlib.util import find_spec

    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        names = " and ".join(DISTRIBUTIONS.get(module, module) for module in missing)
        raise IntarsiaError(
            f"this needs {names}, which {'is' if len(missing) == 1 else 'are'} not installed. "
            f"Install it with: pip install 'intarsia[{extra}]'"
        )
