"""Each command end to end: tables beside the published figures, runs kept, nothing trained twice, samples named so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from intarsia.cli import app
from intarsia.errors import IntarsiaError
from intarsia.lab.paper import EXPERIMENTS, no_bert, running
from intarsia.lab.paper.plan import ExperimentConfig
from intarsia.lab.paper.runs import RunStore
from intarsia.methods import TopLayers
from intarsia.train import runner
from intarsia.train import step as step_module

TASKS = {"glue": "cola,rte", "further": "sms_spam,airline", "tradeoff": "cola,rte", "methods": "cola", "squad": "v1.1"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def paper(name: str, folder: Path, encoder: str, results: Path, *options: str) -> Result:
    tasks = () if "--tasks" in options else ("--tasks", TASKS.get(name, "cola"))
    line = [name, *tasks, "--grid", "tiny", "--data", str(folder), "--encoder", encoder, "--results", str(results)]
    return CliRunner().invoke(app, ["paper", *line, "--max-length", "16", *options], catch_exceptions=False)


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "step_together", lambda *_: pytest.fail("trained again"))


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_a_command_trains_once_and_draws_from_what_is_stored(
    name: str, folder: Path, tiny_folder: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = paper(name, folder, tiny_folder, results)
    assert first.exit_code == 0, first.output
    assert "tiny-bert" in first.output and "Published:" in first.output and "seed 0" in first.output
    assert all(len(line) <= 100 for line in first.stdout.splitlines() if not line.startswith("figures:"))
    no_training(monkeypatch)
    again = paper(name, folder, tiny_folder, results)
    assert again.exit_code == 0 and again.stdout == first.stdout
    drawn = paper(name, Path("nowhere"), "elsewhere/tiny-bert", results, "--draw-only")
    assert drawn.exit_code == 0 and drawn.stdout == first.stdout
    store = RunStore(results, tiny_folder)
    assert not [path for path in (store.folder / "work").iterdir() if path.is_dir()] and store.read_config(name)
    for line in first.stdout.splitlines():
        if line.startswith("figures:"):
            for figure in line.removeprefix("figures: ").partition(" (")[0].split(", "):
                _check_picture(store.figures / f"{figure}.png")
                assert (store.figures / f"{figure}.svg").is_file()


def _check_picture(path: Path) -> None:
    from matplotlib.image import imread

    pixels = np.asarray(imread(path))
    assert pixels.shape[0] > 400 and pixels.shape[1] > 400 and (pixels[..., :3].min(-1) < 0.5).mean() > 0.003


def test_the_page_has_all_and_needs_nothing_else(
    folder: Path, tiny_folder: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in EXPERIMENTS:  # stored already where the tests above have run
        assert paper(name, folder, tiny_folder, results).exit_code == 0
    no_training(monkeypatch)
    line = ["paper", "--report", "--encoder", tiny_folder, "--results", str(results)]
    store = RunStore(results, tiny_folder)
    pages = []
    for _ in range(2):
        assert CliRunner().invoke(app, line, catch_exceptions=False).exit_code == 0
        drawn = {path.name: path.read_bytes() for path in store.figures.iterdir()}
        pages.append(((store.folder / "report.html").read_text(), drawn))
    assert pages[0] == pages[1]  # drawn again, nothing differs
    html = pages[0][0]
    for experiment in EXPERIMENTS.values():
        assert f"<h2>{experiment.title}</h2>" in html
    assert html.count("<svg") == 6 and "<img" not in html and "<script" not in html and 'src="' not in html
    assert 'href="http' not in html and "matplotlib.org" not in html and html.count("<tfoot>") == 2


def test_the_table_of_glue(folder: Path, tiny_folder: str, results: Path) -> None:
    out = paper("glue", folder, tiny_folder, results).stdout.splitlines()
    table = {line.split("  ")[0]: line.split() for line in out}
    assert "60.5" in table["CoLA"] and "71.5" in table["RTE"]
    assert table["total, 2 tasks"][3:5] == ["2.00×", "9×"]
    text = " ".join(" ".join(out).split())
    assert "GLUE's test server" in text and "CoLA, RTE: the official dev part serves as test" in text


def test_a_sample_is_left_out_or_named_as_one(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    left = paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola,mnli")
    assert "MNLI-m is incomplete here and is left out" in left.stdout and "MNLI-mm" not in left.stdout
    taken = paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola,mnli", "--samples").stdout
    rows = [line.split("  ") for line in taken.splitlines() if line.startswith("MNLI")]
    assert [row[0] for row in rows if len(row) > 1] == ["MNLI-m (sample)", "MNLI-mm (sample)"]
    assert "Not a result of the official task" in taken
    record = next(iter(RunStore(tmp_path, tiny_folder).records("glue/mnli").values()))
    assert 0 <= record.extras["mismatched"] <= 1 and record.data["partial"]
    again = paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola,mnli", "--draw-only")
    assert "MNLI-m (" not in again.stdout
    with pytest.raises(IntarsiaError, match="no task to train on"):
        paper("glue", folder, tiny_folder, tmp_path, "--tasks", "mnli")


def test_the_search_without_bert_stands_beside_the_published_one(
    folder: Path, tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    search = no_bert.search

    def counted(data: Any, **options: Any) -> Any:
        searched.append(data.source["suite"])
        return search(data, **options)

    monkeypatch.setattr(no_bert, "search", counted)
    with monkeypatch.context() as alone:
        no_training(alone)
        for _ in range(2):
            out = paper("further", folder, tiny_folder, tmp_path, "--only", "no_bert").stdout
    assert searched == ["extra/sms_spam", "extra/airline"]
    rows = [line.split() for line in out.splitlines() if line.startswith("airline  ")]
    assert 0 < float(rows[0][1]) <= 100 and rows[0][2:] == ["84.5", "–", "83.6", "–", "84.0", "–", "84.5"]
    assert rows[1][-3:] == ["–", "–", "–"] and "word" in rows[1]  # what won; n, size and score
    out = paper("further", folder, tiny_folder, tmp_path, "--only", "full", "--tasks", "airline").stdout
    cells = next(line.split() for line in out.splitlines() if line.startswith("airline  "))
    assert cells[1] == rows[0][1] and cells[3] != "–" and "total, 1 task" in out
    file = RunStore(tmp_path, tiny_folder).folder / "no_bert" / "extra-airline.jsonl"
    stored = json.loads(file.read_text())
    assert stored["candidates"] == 3 and stored["data"]["suite"] == "extra/airline" and stored["parameters"] > 0
    file.write_text(json.dumps({**stored, "data": {**stored["data"], "sha256": "other rows"}}) + '\n{"task": "ext')
    assert paper("further", folder, tiny_folder, tmp_path, "--only", "no_bert").exit_code == 0
    assert searched[2:] == ["extra/airline"] and len(file.read_text().splitlines()) == 3
    with pytest.raises(IntarsiaError, match="no group 'no_bert'"):
        paper("glue", folder, tiny_folder, tmp_path, "--only", "no_bert")


def test_questions_of_squad(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    line = ["paper", "squad", "--tasks", "v1.1,squad/v2", "--samples", "--grid", "tiny", "--data", str(folder)]
    line += ["--encoder", tiny_folder, "--results", str(tmp_path)]
    out = CliRunner().invoke(app, line, catch_exceptions=False).stdout
    assert "head on every token, texts of ≤ 384 tokens" in " ".join(out.split())
    whole, sample = out.split("SQuAD 1.1: ")[1].split("SQuAD 2.0 (sample): ")[:2]
    for part, small, full in ((whole, "89.9", "90.7"), (sample, "–", "–")):
        rows = {cells[0]: cells for cells in map(str.split, part.splitlines()) if cells}
        assert rows["houlsby-2"][-4] == small and rows["full"][-4] == full and rows["houlsby-4"][-4] == "–"
        assert "100" in rows["full"][-6] and rows["full"][-2:] == ["0.001", "1"]
    assert "SQuAD 2.0 (sample): the given dev part serves as test" in " ".join(out.split())
    for task in ("squad/v1.1", "squad/v2.0"):
        for record in RunStore(tmp_path, tiny_folder).records(task).values():
            assert record.settings["max_length"] == 384 and record.settings["metric"] == "f1" and record.test
            assert 0 <= record.extras["exact-match"] <= record.test


def test_limited_results_are_kept_apart(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    out = paper("init", folder, tiny_folder, tmp_path, "--limit", "20").stdout
    assert "CoLA (20 rows)" in out and "not results of the official tasks" in " ".join(out.split())
    assert (tmp_path / "paper" / "tiny-bert-limit20").is_dir() and not (tmp_path / "paper" / "tiny-bert").exists()
    with pytest.raises(IntarsiaError, match="no results"):
        paper("init", folder, tiny_folder, tmp_path, "--draw-only")


def test_trying_out_takes_fewer_test_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "TRIAL_ROWS", 10)
    wanted = [ExperimentConfig(("glue/mnli",), "tiny", limit=limit, samples=True) for limit in (None, 20)]
    whole, tried = (running.load_tasks(["glue/mnli"], config, folder)[0]["glue/mnli"] for config in wanted)
    assert [len(x) for x in (whole.data.test, whole.extras["mismatched"])] == [60, 60]
    assert [len(x) for x in (tried.data.test, tried.extras["mismatched"])] == [10, 10]
    assert tried.data.source["rows"]["test"] == 10 and tried.data.source["sha256"] != whole.data.source["sha256"]


def test_after_a_kill_no_run_is_repeated(
    folder: Path, tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, str, float]] = []
    step, crash = step_module.step_together, True

    def crashing(pairs: Any) -> list[float]:
        if crash and len(taken) >= 5:
            raise OSError("power cut")
        taken.extend((run.job.name, str(run.job.describe()), run.state.step) for run, _ in pairs)
        return step(pairs)

    monkeypatch.setattr(step_module, "step_together", crashing)
    with pytest.raises(OSError, match="power cut"):
        paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola", "--together", "1")
    runs = RunStore(tmp_path, tiny_folder).folder / "runs" / "glue-cola.jsonl"
    before = runs.read_text()
    ended = {json.loads(line)["key"] for line in before.splitlines()}
    assert ended
    report = CliRunner().invoke(app, ["paper", "--report", "-e", tiny_folder, "--results", str(tmp_path)])
    assert report.exit_code == 0  # with what there is by now
    runs.write_text(before + '{"task": "glue/co')  # the kill cut a line short
    crash, already = False, len(taken)
    assert paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola", "--together", "1").exit_code == 0
    lines = runs.read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines if line.endswith("}")]
    assert len(keys) == len(set(keys)) == 5 and ended < set(keys)
    finished = {job for _, job, _ in taken[: already - 1]} - {taken[already - 1][1]}
    assert not finished & {job for _, job, _ in taken[already:]}


def test_more_seeds_train_only_what_is_new(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    assert paper("init", folder, tiny_folder, tmp_path).exit_code == 0
    runs = RunStore(tmp_path, tiny_folder).folder / "runs" / "glue-cola.jsonl"
    before = runs.read_text()
    out = paper("init", folder, tiny_folder, tmp_path, "--seeds", "2").stdout
    assert runs.read_text().startswith(before) and len(runs.read_text().splitlines()) == 6
    assert "±" in out and "seeds 0, 1" in out


def test_another_encoder_of_the_same_name_is_refused(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    from tests.support.families import save_tiny

    assert paper("init", folder, tiny_folder, tmp_path).exit_code == 0
    other = save_tiny(tmp_path / "other" / "tiny-bert", seed=3)
    with pytest.raises(IntarsiaError, match="another encoder"):
        paper("init", folder, other, tmp_path)


def test_what_cannot_be_asked_for(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    for options, message in (
        (("--grid", "huge"), "grid"),
        (("--seeds", "0"), "seeds"),
        (("--tasks", "colla"), "colla"),
        (("--tasks", "squad/v1.1"), "cannot be used in `intarsia paper glue`"),
        (("--tasks", "ax"), "cannot be used in `intarsia paper glue`"),
        (("--max-length", "2"), "leaves no word"),
        (("--max-length", "5000"), "more than .* can read"),
        (("--tasks", ""), "--tasks is empty"),
        (("--only", ","), "--only is empty"),
        (("--device", "gpu"), "the device 'gpu' is not known"),
        (("--only", "full,adapter"), "no group 'adapter'. Groups for --only: full, variable, adapters"),
    ):
        with pytest.raises(IntarsiaError, match=message):
            paper("glue", folder, tiny_folder, tmp_path, *options)


def test_results_that_are_no_folder(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IntarsiaError, match="file is a file"):
        paper("init", folder, tiny_folder, tmp_path / "file")


def test_damaged_files_are_named(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    assert paper("init", folder, tiny_folder, tmp_path).exit_code == 0
    store = RunStore(tmp_path, tiny_folder)
    runs = next((store.folder / "runs").glob("*.jsonl"))
    runs.write_bytes(b"garbage\n" + runs.read_bytes())
    again = paper("init", folder, tiny_folder, tmp_path, "--draw-only")
    assert again.exit_code == 0 and "line 1 cannot be read" in " ".join(again.stdout.split())
    for name, content in (("init.json", "[]"), ("init.json", "{"), ("encoder.json", "{x")):
        kept = (store.folder / name).read_text()
        (store.folder / name).write_text(content)
        with pytest.raises(IntarsiaError, match=f"{name} cannot be read"):
            paper("init", folder, tiny_folder, tmp_path)
        (store.folder / name).write_text(kept)


def test_drawing_without_options_draws_what_was_asked_for(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    """And a command of another grid that was stopped does not hide it."""
    first = paper("init", folder, tiny_folder, tmp_path)
    store = RunStore(tmp_path, tiny_folder)
    result = CliRunner().invoke(
        app, ["paper", "init", "--draw-only", "--encoder", tiny_folder, "--results", str(tmp_path)]
    )
    assert result.stdout == first.stdout
    noted = store.read_config("init")
    assert noted is not None and noted.config.grid == "tiny"

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "train_missing", stopped)
        assert paper("init", folder, tiny_folder, tmp_path, "--grid", "small").exit_code == 130
    noted = store.read_config("init")
    assert noted is not None and noted.config.grid == "tiny"


def test_options_before_the_name_are_refused(tmp_path: Path) -> None:
    for options, message in (
        (["--report"], "use only one"),
        (["--results", str(tmp_path)], "put it after the command"),
    ):
        with pytest.raises(IntarsiaError, match=message):
            CliRunner().invoke(app, ["paper", *options, "glue"], catch_exceptions=False)


def test_a_group_is_trained_once_at_a_time(folder: Path, tiny_folder: str, tmp_path: Path) -> None:
    with RunStore(tmp_path, tiny_folder).work_folders("glue", ["full", "variable"]):
        for options in ((), ("--only", "variable,adapters")):
            with pytest.raises(IntarsiaError, match=r"another .* process is training the group (variable|full)"):
                paper("glue", folder, tiny_folder, tmp_path, *options)
        assert paper("glue", folder, tiny_folder, tmp_path, "--only", "adapters").exit_code == 0


def test_only_some_groups_are_trained_and_all_that_is_stored_is_drawn(
    folder: Path, tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cells(out: str, start: str) -> list[str]:
        return next(line for line in out.splitlines() if line.startswith(start)).split()

    store = RunStore(tmp_path, tiny_folder)
    first = paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola", "--only", "full").stdout
    assert {record.method["type"] for record in store.records("glue/cola").values()} == {"full"}
    assert cells(first, "CoLA  ")[4:8] == ["–", "–", "–", "–"] and "Incomplete: 1 of 5 planned runs" in first
    assert cells(first, "total, 1 task")[3:7] == ["1.00×", "9×", "–", "–"]
    second = paper("glue", folder, tiny_folder, tmp_path, "--tasks", "rte,mnli", "--only", "adapters, variable").stdout
    assert cells(second, "RTE  ")[2] == "–" and "–" not in cells(second, "RTE  ")[4:8]
    noted = store.read_config("glue")
    assert (
        noted and noted.config.tasks == ("glue/cola", "glue/rte", "glue/mnli") and set(noted.skipped) == {"glue/mnli"}
    )
    no_training(monkeypatch)
    assert CliRunner().invoke(app, ["paper", "--report", "-e", tiny_folder, "--results", str(tmp_path)]).exit_code == 0
    html = (store.folder / "report.html").read_text()
    assert ">CoLA<" in html and ">RTE<" in html and "MNLI-m is incomplete here" in html


def test_what_was_asked_for_in_turn_is_kept_together() -> None:
    first = ExperimentConfig(("glue/cola",), "tiny", seeds=3)
    both = ExperimentConfig(("glue/rte",), "tiny", samples=True).merged(first)
    assert both == ExperimentConfig(("glue/cola", "glue/rte"), "tiny", samples=True, task_seeds={"glue/cola": 3})
    assert [len(both.seed_range(task)) for task in both.tasks] == [3, 1]  # each task keeps the larger number of seeds
    more = ExperimentConfig(("glue/cola", "glue/rte"), "tiny", seeds=2).merged(both)
    assert [len(more.seed_range(task)) for task in more.tasks] == [3, 2]
    other = ExperimentConfig(("glue/rte",), "small")
    assert other.merged(first) is other  # another grid has other runs


def test_what_another_process_has_finished_is_not_trained_again(
    folder: Path, tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert paper("init", folder, tiny_folder, tmp_path / "theirs").exit_code == 0
    ours, theirs = (RunStore(tmp_path / who, tiny_folder) for who in ("ours", "theirs"))
    queued: list[Any] = []

    def meanwhile(jobs: Any, *_: Any, needed: Any, **__: Any) -> None:
        for record in theirs.records("glue/cola").values():
            ours.add(record)
        queued.extend(job for job in jobs if needed(job))

    monkeypatch.setattr(runner, "train_together", meanwhile)
    assert paper("init", folder, tiny_folder, tmp_path / "ours").exit_code == 0 and not queued


def test_a_method_that_the_encoder_cannot_have_is_a_record_with_its_reason(
    folder: Path, tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise IntarsiaError("not on this base")

    monkeypatch.setattr(TopLayers, "check", refuse)
    out = paper("glue", folder, tiny_folder, tmp_path, "--tasks", "cola").stdout
    assert "2 runs failed. The first error: not on this base" in out
    row = next(line for line in out.splitlines() if line.startswith("CoLA  ")).split()
    assert row[4:6] == ["–", "–"]  # variable fine-tuning and its n
