"""What the core install brings: an extra that is missing is named, and importing stays light."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from intarsia import provenance
from intarsia.cli import main
from intarsia.errors import DISTRIBUTIONS, DataError, IntarsiaError
from intarsia.version import __version__
from tests.support.families import opinions, save_tiny

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "datasets", "sklearn", "matplotlib", "pyarrow"}


def run(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["intarsia", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("hidden", "extra", "arguments"),
    [
        ("matplotlib", "lab", ["compare", "DATA"]),
        ("sklearn", "lab", ["compare", "DATA", "--no-bert", "1"]),
        ("sklearn", "lab", ["baseline", "DATA"]),
        ("datasets", "hub", ["learn", "tone", "owner/name"]),
        ("datasets", "hub", ["data", "fetch", "glue/cola", "--from", "hub", "--to", "FOLDER"]),
    ],
    ids=["compare", "compare-no-bert", "baseline", "learn-hub", "fetch-hub"],
)
def test_a_missing_extra_is_an_error_that_says_what_to_install(
    hidden: str,
    extra: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in opinions(40)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, hidden, None)  # an import fails, as if it were not installed
    given = {"DATA": str(data), "FOLDER": str(tmp_path / "fetched")}
    assert run([given.get(one, one) for one in arguments], monkeypatch) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{DISTRIBUTIONS.get(hidden, hidden)}, which is not installed" in said and "Traceback" not in said
    assert f"pip install 'intarsia[{extra}]'" in said
    assert not (tmp_path / "comparison").exists()  # it is known before anything is trained


def test_the_paper_needs_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.encoder.encoder import Encoder
    from intarsia.lab import paper
    from intarsia.lab.paper.plan import ExperimentConfig
    from intarsia.lab.paper.runs import RunStore

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    store = RunStore(tmp_path / "results", "tiny")
    with pytest.raises(IntarsiaError, match=r"pip install 'intarsia\[lab\]'"):
        paper.run("init", ExperimentConfig(("glue/cola",)), Encoder.load(save_tiny(tmp_path / "base")), store)


def test_a_hub_name_that_may_be_a_missing_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from intarsia.tasks import load_data

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="no file or folder of that name exists"):
        load_data("owner/name")


def test_provenance_names_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = provenance.versions()
    assert {"python", "torch", "scikit-learn"} <= found.keys() and found["intarsia"] == __version__
    monkeypatch.setattr(provenance, "PACKAGES", ("numpy", "no-such-package"))
    assert provenance.versions().keys() == {"python", "intarsia", "numpy"}


def test_the_extras_are_in_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    apart = {"all", "mlflow", "ray", "tensorboard", "wandb"}  # large, or with requirements that exclude others
    assert extras["all"] == [f"intarsia[{','.join(sorted(extras.keys() - apart))}]"]


def imported_by(code: str) -> set[str]:
    """The modules that a fresh process has imported after it ran the code."""
    code += "\nimport sys; print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_imports_no_library() -> None:
    assert not imported_by("import intarsia") & (HEAVY | {"numpy", "rich", "typer", "safetensors"})


def test_the_help_needs_no_model() -> None:
    code = """
import sys
from intarsia.cli import main
sys.argv = ["intarsia", "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
    assert not imported_by(code) & (HEAVY | {"numpy"})
