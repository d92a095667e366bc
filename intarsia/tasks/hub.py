"""Data sets of the Hugging Face hub, with class numbers turned into names."""

from __future__ import annotations

from typing import Any

from intarsia.errors import DataError
from intarsia.tasks.sources import SPLIT_NAMES, Gathered, Table

ADVICE = "A local file or folder may be given instead."


def load_hub(name: str, config: str | None) -> Gathered:
    """The train, dev and test splits of a hub data set; other splits are left out."""
    full_name = f"{name}:{config}" if config else name
    splits = _download(name, config, full_name)
    roles = SPLIT_NAMES if len(splits) > 1 else dict.fromkeys(splits, "all")
    tables = {
        roles[split]: _table(f"{full_name} ({split})", data, roles[split])
        for split, data in splits.items()
        if split in roles
    }
    full_name = f"hub data set {full_name} (splits {', '.join(splits)})"
    return Gathered(full_name, tables, {"from": "hub", "hub": name, "config": config})


def _download(name: str, config: str | None, full_name: str) -> dict[str, Any]:
    import datasets

    try:
        return {str(split): data for split, data in datasets.load_dataset(name, config).items()}
    except ConnectionError as error:
        raise DataError(
            f"the hub could not be reached for the data set {full_name!r}, and there is no file or folder of that name "
            f"({error}). Check the connection. {ADVICE}"
        ) from error
    except FileNotFoundError as error:
        raise DataError(
            f"no data set {full_name!r} on the hub, and no file or folder of that name ({_first_line(error)}). "
            f"Check the name, or log in if the data set is private. {ADVICE}"
        ) from error
    except Exception as error:  # the library raises whatever its parsers and its HTTP client raise
        raise DataError(
            f"the hub data set {full_name!r} could not be loaded: {_first_line(error)} "
            f"A configuration is given after a colon, as in nyu-mll/glue:mrpc. {ADVICE}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def _table(name: str, data: Any, split: str) -> Table:
    rows = data.to_list()
    for column, feature in data.features.items():
        names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
        if names:
            for row in rows:
                row[column] = _named(row[column], names)
        elif split == "test" and rows and all(row[column] == -1 for row in rows):
            # Hidden labels that are numbers are given as -1 throughout.
            for row in rows:
                row[column] = None
    return Table(name, "row", range(1, len(rows) + 1), rows)


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return None if value is None or value < 0 else names[value]
