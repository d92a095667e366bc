"""A real browser for tests of the page, and for its screenshots: Debian's chromium, driven by selenium."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
REQUIRED = "INTARSIA_TEST_BROWSER"  # set by `make test-browser`: without a browser the tests fail
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def missing() -> str | None:
    """What a browser test lacks here, or None."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    absent = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    return f"{' and '.join(absent)} not found; on Debian: apt-get install chromium chromium-driver" if absent else None


def required() -> bool:
    return bool(os.environ.get(REQUIRED))


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A fresh browser with a profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="intarsia-browser-", ignore_cleanup_errors=True) as profile:
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        try:
            yield driver
        finally:
            driver.quit()


def resize(driver: Any, width: int, height: int, *, dark: bool = False) -> None:
    """The size of the page's area, and the colours that the user prefers."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
