"""Run the commands that the documentation shows, and compare what they print with what the pages show.

    python docs/check.py                       # PAGES, one after another, in one temporary folder
    python docs/check.py docs/quickstart.md    # one page
    python docs/check.py --show                # also print what each command printed

How a page is written so that it can be checked:

- A `python` block whose first line is a comment with a file name (`# make_tickets.py`) is written to that file.
- A `console` block holds commands (`$ …`; a line that ends with a backslash goes on in the next one), each followed by
  what it prints: standard output and standard error together. Every command is run, in the order of the page.
- A line `…` in the shown output stands for any lines, also for none. A line `^C` says that Ctrl-C was pressed: the
  command is interrupted as soon as it has stored its first checkpoint.
- Other blocks are not run. Use `sh` for commands that this check must not run, such as installing.

White space does not matter, so a page may wrap long lines. `MASKS` lists what may differ between machines: times,
dates, digests, versions, sizes, and the digits that depend on how training went.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
DOCS = Path(__file__).parent
PAGES = (DOCS / "quickstart.md", DOCS / "export.md", DOCS.parent / "README.md")  # the first makes tickets.csv
LONGEST = 300  # seconds for one command

# What may differ, and what both sides show in its place. The order matters.
MASKS = [
    (r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", "DATE"),
    (r"\b(python|torch|numpy|scipy|safetensors|scikit-learn|tokenizers|transformers) \d[\w.+]*", r"\1 VERSION"),
    (r"\b[01]\.\d{4,}(e-\d+)?\b|\b\d\.\d+e-\d+\b", "NUMBER"),
    (r"\b[0-9a-f]{16,64}\b", "HASH"),
    (r"(\d+h)?(\d+m)?\d+(\.\d+)?s\b", "TIME"),
    (r"[\d,]+ tokens/s", "SPEED"),
    (r"\d+\.\d \(\d+\.\d–\d+\.\d\)", "SCORE"),  # with its 95 % interval
    (r"\d+\.\d \(95 % interval \d+\.\d to \d+\.\d\)", "SCORE"),
    (r"Interval\([^)]*\)", "SCORE"),
    (r"\b(loss|accuracy) \d+\.\d+", r"\1 SCORE"),
    (r"validation +\d+\.\d at epoch \d+", "validation SCORE"),
    (r"\d+% · epoch \d+/", "SHARE · epoch N/"),
    (r"\d+(\.\d+)? (kB|MB)", "SIZE"),
]


@dataclass(frozen=True)
class Command:
    text: str
    shown: str  # the page's output

    @property
    def interrupted(self) -> bool:
        return "^C" in self.shown.split("\n")


def read_page(text: str) -> Iterator[Command | tuple[str, str]]:
    """The page's commands, and its scripts as (file name, content), in their order."""
    for language, content in FENCE.findall(text):
        if language == "python" and (name := FILE_NAME.match(content)):
            yield name[1], content
        elif language == "console":
            for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
                lines = part.split("\n")
                last = next(i for i, line in enumerate(lines) if not line.endswith("\\"))
                yield Command("\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :]))


def run(command: Command, folder: Path) -> str:
    """What a command prints to standard output and standard error."""
    # The interpreter's folder comes first: its `intarsia` is the one to check.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "120"}
    environment.pop("INTARSIA_BANK", None)
    process = subprocess.Popen(
        ["bash", "-c", command.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    if command.interrupted:
        _wait_for_checkpoint(process, folder)
        os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=LONGEST)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0] + f"\n(stopped after {LONGEST} seconds)"


def _wait_for_checkpoint(process: subprocess.Popen[str], folder: Path) -> None:
    end = time.monotonic() + LONGEST
    while process.poll() is None and time.monotonic() < end:
        if any(folder.glob("*/work/*/state.safetensors")):
            return
        time.sleep(0.05)


def matches(shown: str, printed: str) -> bool:
    """Whether what was printed is what the page shows, as far as it is stable."""
    lines = [line for line in shown.split("\n") if line.strip() != "^C"]
    parts = re.split(r"^…$", "\n".join(lines), flags=re.MULTILINE)
    pattern = r"(?:.*\s)?".join(re.escape(part) for part in map(masked, parts))
    return re.fullmatch(pattern, masked(printed), re.DOTALL) is not None


def masked(text: str) -> str:
    """The text with every run of white space as one space, and `MASKS` applied."""
    text = " ".join(text.split())
    for pattern, stand_in in MASKS:
        text = re.sub(pattern, stand_in, text)
    return f"{text} " if text else ""


def check(page: Path, folder: Path, *, show: bool) -> int:
    """Check one page in a folder; the number of commands whose output differs."""
    wrong = 0
    print(page.name)
    for item in read_page(page.read_text(encoding="utf-8")):
        if isinstance(item, tuple):
            (folder / item[0]).write_text(item[1], encoding="utf-8")
            continue
        begun = time.monotonic()
        printed = run(item, folder)
        right = matches(item.shown, printed)
        print(f"{'ok   ' if right else 'WRONG'} {time.monotonic() - begun:5.1f}s  $ {item.text}", flush=True)
        if show or not right:
            print(printed)
        if not right:
            wrong += 1
            print(f"--- the page shows:\n{item.shown}\n--- masked, printed:\n{masked(printed)}")
            print(f"--- masked, shown:\n{masked(item.shown)}\n")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--show", action="store_true", help="print the output of every command")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = sum(check(page, Path(folder), show=chosen.show) for page in chosen.pages)
    print(f"{wrong} outputs differ from the documentation." if wrong else "All outputs are as shown.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
