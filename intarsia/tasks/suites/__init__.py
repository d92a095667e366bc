"""Suites of public tasks: their declarations, what a data folder has of them, fetching and loading."""

from __future__ import annotations

from intarsia.tasks.suites.fetch import Fetched, fetch
from intarsia.tasks.suites.folder import Listing, SplitStatus, Status, data_folder, list_data, status
from intarsia.tasks.suites.loading import load, read_texts
from intarsia.tasks.suites.registry import SUITES, chosen, find
from intarsia.tasks.suites.submission import write_submission
from intarsia.tasks.suites.suite import FileLayout, Hub, Suite, SuiteTask

__all__ = [
    "SUITES",
    "Fetched",
    "FileLayout",
    "Hub",
    "Listing",
    "SplitStatus",
    "Status",
    "Suite",
    "SuiteTask",
    "chosen",
    "data_folder",
    "fetch",
    "find",
    "list_data",
    "load",
    "read_texts",
    "status",
    "write_submission",
]
