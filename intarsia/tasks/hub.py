"""Data sets of the Hugging Face hub. Class numbers become class names."""

from __future__ import annotations

from typing import Any

from intarsia.errors import DataError, IntarsiaError, check_extra
from intarsia.tasks.tables import SPLIT_NAMES, Gathered, RawTable

NO_SUCH_FILE = ", and no file or folder of that name exists"
ADVICE = "Or give a local file or folder."


def load_hub(name: str, config: str | None) -> Gathered:
    """The train, dev and test splits of a hub data set; other splits are left out."""
    full_name = f"{name}:{config}" if config else name
    splits = download(name, config)
    roles = SPLIT_NAMES if len(splits) > 1 else dict.fromkeys(splits, "all")
    tables = {
        roles[split]: table_of_dataset(f"{full_name} ({split})", data, roles[split])
        for split, data in splits.items()
        if split in roles
    }
    full_name = f"hub data set {full_name} (splits {', '.join(splits)})"
    return Gathered(full_name, tables, {"from": "hub", "hub": name, "config": config})


def download(
    name: str, config: str | None, *, revision: str | None = None, also: str = NO_SUCH_FILE, advice: str = ADVICE
) -> dict[str, Any]:
    """The splits of a hub data set. Error messages add `also` (what else was tried) and `advice` (what to do)."""
    full_name = f"{name}:{config}" if config else name
    try:
        check_extra("hub", "datasets")
    except IntarsiaError as error:
        raise DataError(f"cannot load the hub data set {full_name!r}{also}: {error}") from error
    import datasets

    options = {"revision": revision} if revision else {}
    try:
        return {str(split): data for split, data in datasets.load_dataset(name, config, **options).items()}
    except ConnectionError as error:
        raise DataError(
            f"cannot reach the hub for the data set {full_name!r}{also} ({error}). Check the connection. {advice}"
        ) from error
    except FileNotFoundError as error:
        raise DataError(
            f"no data set {full_name!r} on the hub{also} ({_first_line(error)}). "
            f"Check the name, or log in if the data set is private. {advice}"
        ) from error
    except Exception as error:  # `datasets` passes on any exception of its parsers and HTTP client
        raise DataError(
            f"cannot load the hub data set {full_name!r}: {_first_line(error)} "
            f"Name a configuration after a colon, as in nyu-mll/glue:mrpc. {advice}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def table_of_dataset(name: str, data: Any, split: str = "all") -> RawTable:
    """The table of a data set of the library `datasets`, with class names and with None for hidden labels."""
    rows = data.to_list() if hasattr(data, "to_list") else [dict(row) for row in data]
    for column, feature in (data.features or {}).items():
        names = class_names(feature)
        if names:
            for row in rows:
                row[column] = named(row[column], names)
        elif split == "test" and rows and all(row[column] == -1 for row in rows):
            # The hub stores hidden numeric labels as -1.
            for row in rows:
                row[column] = None
    lines = list(data.features or ()) == ["text"]  # WikiText has one row per line
    return RawTable(name, "row", range(1, len(rows) + 1), rows, lines)


def class_names(feature: Any) -> list[str] | None:
    """The class names of a column of class numbers, or of lists of them; None for other columns."""
    return getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)


def named(value: Any, names: list[str]) -> Any:
    """The class name of a class number, or of each in a list; None for a missing or negative number."""
    if isinstance(value, list):
        return [named(item, names) for item in value]
    return None if value is None or value < 0 else names[value]
