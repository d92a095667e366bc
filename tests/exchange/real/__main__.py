"""Compare Intarsia with the real libraries, both ways, for every method and family that they support.

python -m tests.exchange.real [--only peft] [--families bert,roberta] [--work DIR] [--table docs/exchange.md]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.exchange.real.compare import Result, import_case
from tests.exchange.real.exports import compare_cases, write_cases
from tests.exchange.real.table import write
from tests.support.tiny_models import FAMILY_NAMES

ROOT = Path(__file__).parents[3]
LIBRARIES = {  # name → the environment of its scripts, and Intarsia's name of its format
    "adapters": (".venv-adapters", "adapterhub"),
    "peft": (".venv-peft", "peft"),
    "sft": (".venv-peft", "sft"),  # which has transformers; the library itself is on no package index
}


def run(environment: str, script: str, *arguments: str) -> None:
    """Run a script of this package in another library's environment."""
    python = ROOT / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} does not exist; `make test-exchange` builds it (benchmarks/setup_peers.sh).")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "-m", f"tests.exchange.real.{script}", *arguments], check=True, env=variables, cwd=ROOT)


def compare_imports(library: str, work: Path, families: Sequence[str]) -> list[Result]:
    environment, format = LIBRARIES[library]
    run(environment, f"{library}_write", str(work), *families)
    folders = sorted(path.parent for path in (work / library / "read").glob("*/case.json"))
    return [import_case(library, format, folder, work) for folder in folders]


def compare_exports(library: str, work: Path, families: Sequence[str]) -> list[Result]:
    environment, format = LIBRARIES[library]
    refused = write_cases(library, format, work, families)
    run(environment, f"{library}_read", str(work))
    return [*refused, *compare_cases(library, work)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=LIBRARIES, action="append")
    parser.add_argument("--families", default=",".join(FAMILY_NAMES))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--table", type=Path, help="the page whose table is written")
    given = parser.parse_args()
    families = given.families.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        results = []
        for library in given.only or LIBRARIES:
            results += compare_imports(library, work, families)
            results += compare_exports(library, work, families)
        if given.table:
            write(given.table, results, work)
    for r in results:
        outcome = f"refused: {r.refused}" if r.difference is None else f"{r.difference:.1e}"
        print(f"{r.library} {r.direction} {r.family}, {r.method}: {outcome}{' FAILED' * r.failed}")
    failed = [r for r in results if r.failed]
    print(f"{len(results)} cases, {len(failed)} failed, {sum(bool(r.refused) for r in results)} refused")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
