"""Jobs: learn while serving, follow, cancel, survive, fail with a reason."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import urllib.parse
from pathlib import Path
from typing import Any, ClassVar

import pytest

from intarsia.bank.bank import Bank
from intarsia.encoder.encoder import Encoder
from intarsia.service.job_process import JobProcess
from intarsia.service.jobs import ATTEMPTS, JobBoard
from intarsia.service.options import Options
from tests.support.families import opinions
from tests.support.service import TEXTS, Running, running, wait_until

JOB = {"task": "new", "rows": opinions(60, seed=9), "method": "houlsby-8", "epochs": 2, "learning_rate": 0.003}


@pytest.fixture
def own(learned: Path, encoder: Encoder, tmp_path: Path) -> Bank:
    shutil.copytree(learned, tmp_path / "bank")
    return Bank(tmp_path / "bank", encoder)


def events(service: Running, id: str, after: int | None = None) -> list[tuple[int, str, dict[str, Any]]]:
    """All events of a job, until it has ended: number, name, data."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    text = service.ask("GET", f"/v1/jobs/{id}/events", None, headers, timeout=120).content.decode()
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_a_task_is_learned_while_others_answer(own: Bank, base: str) -> None:
    with running(own, jobs=True, encoder=base) as service:
        reply = service.post("/v1/jobs", JOB)
        job = reply.json()
        assert reply.status == 202 and reply.headers["location"] == f"/v1/jobs/{job['id']}"
        assert service.post("/v1/jobs", JOB).status == 409
        wrong = service.post("/v1/jobs", {**JOB, "task": "no/name"})
        assert (wrong.status, wrong.json()["error"]["code"]) == (422, "invalid_name")
        csv = "text,label\n" + "".join(f"{row['text']},same\n" for row in opinions(30))
        other = service.ask(
            "POST", "/v1/jobs?task=flat&text=text&label=label", csv.encode(), {"Content-Type": "text/csv"}
        )
        assert other.status == 202
        third = service.post("/v1/jobs", {**JOB, "task": "third"}).json()
        assert service.post(f"/v1/jobs/{third['id']}/cancel").json()["state"] == "cancelled"
        assert service.post("/v1/predict", {"requests": [{"task": "opinion", "input": "good"}]}).status == 200
        found = events(service, job["id"])
        names = [name for _, name, _ in found]
        assert names[:2] == ["state", "state"] and names[-1] == "done" and "progress" in names
        assert [number for number, _, _ in found] == list(range(len(found)))
        assert events(service, job["id"], after=1) == found[2:]
        ended = service.get(f"/v1/jobs/{job['id']}").json()
        assert ended["state"] == "done" and ended["version"] == 1 and ended["progress"]["epochs"] == 2
        assert [p.to_dict() for p in own.predict("new", TEXTS)] == [
            {k: v for k, v in r.items() if k not in ("index", "version", "kind")}
            for r in service.post("/v1/tasks/new/predict", {"inputs": TEXTS}).json()["results"]
        ]
        assert events(service, other.json()["id"])[-1][1] == "failed"
        failed = service.get(f"/v1/jobs/{other.json()['id']}").json()
        assert "label" in failed["error"] and "/" not in failed["error"]
        assert [j["state"] for j in service.get("/v1/jobs").json()["jobs"]] == ["cancelled", "failed", "done"]
        assert not list((own.store.folder / "work" / "jobs").glob("*/data.*"))
    assert own.verify() == [] and own.unfinished() == []


def test_a_service_in_int8_learns_in_float32(own: Bank, base: str) -> None:
    with running(own, jobs=True, encoder=base, precision="int8") as service:
        job = service.post("/v1/jobs", {**JOB, "epochs": 1}).json()
        assert events(service, job["id"])[-1][1] == "done"


def test_a_running_job_is_cancelled_and_leaves_nothing(own: Bank, base: str) -> None:
    with running(own, jobs=True, encoder=base) as service:
        job = service.post("/v1/jobs", {**JOB, "epochs": 1000}).json()
        board = service.service.jobs
        wait_until(lambda: any(event["event"] == "progress" for event in board.job(job["id"]).events), 120)
        service.post(f"/v1/jobs/{job['id']}/cancel")
        assert events(service, job["id"])[-1][1] == "cancelled"
    assert own.unfinished() == [] and [entry.name for entry in own.tasks()] == ["opinion", "pairs", "rating", "tags"]


def test_a_disk_that_fills_fails_the_job_and_nothing_else(own: Bank, base: str) -> None:
    """The process of the job may write files of 8 KB only: the inlay has 20 KB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with running(own, jobs=True, encoder=base) as service:
        board = service.service.jobs
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        try:
            job = service.post("/v1/jobs", JOB).json()
            wait_until(lambda: board.job(job["id"]).process is not None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert events(service, job["id"])[-1][1] == "failed"
        error = service.get(f"/v1/jobs/{job['id']}").json()["error"]
        assert "File too large" in error and str(own.store.folder) not in error
        assert service.post("/v1/predict", {"requests": [{"task": "opinion", "input": "good"}]}).status == 200
    assert own.verify() == [] and "new" not in [entry.name for entry in own.tasks()]


class FakeProcess:
    """Stands in for the process of a job: says what it is told to."""

    says: ClassVar[list[dict[str, Any]]] = []
    code = 0

    def __init__(self, *_: Any) -> None:
        self.cancelled = False

    def events(self) -> Any:
        yield from self.says

    def wait(self) -> int:
        return self.code

    def cancel(self) -> None:
        self.cancelled = True

    def stop(self) -> None:
        pass

    death = JobProcess.death


@pytest.fixture
def board(own: Bank, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("intarsia.service.jobs.JobProcess", FakeProcess)
    return lambda: JobBoard(own.store.folder, None, Options())  # type: ignore[arg-type]


def add(board: JobBoard, task: str = "new") -> str:
    with board.new_folder() as folder:
        (folder / "data.jsonl").write_text("{}")
        return board.add(folder, task, {"seed": 1}, 1).id


def test_jobs_survive_the_service(board: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = board()
    id = add(first)  # the service is killed before it runs
    monkeypatch.setattr(FakeProcess, "says", [{"event": "progress", "step": 1}, {"event": "done", "version": 7}])
    second = board()
    second.begin()
    wait_until(lambda: second.job(id).info.state == "done")
    second.close()
    third = board()
    third.begin()
    info = third.job(id).info
    assert info.state == "done" and info.version == 7 and info.options == {"seed": 1}
    assert [event["event"] for event in third.job(id).events] == ["state", "state", "progress", "done"]
    third.close()


def test_of_two_services_one_has_the_jobs_and_the_other_takes_them_over(
    board: Any, own: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intarsia.service.jobs.LOOK_SECONDS", 0.02)
    monkeypatch.setattr(FakeProcess, "says", [{"event": "done", "version": 1}])
    first = board()
    first.begin()
    with running(own, jobs=True) as second:
        refused = second.get("/v1/jobs")
        assert refused.status == 403 and refused.json()["error"]["code"] == "jobs_elsewhere"
        assert second.post("/v1/jobs", JOB).json()["error"]["code"] == "jobs_elsewhere"
        first.check_room("new")
        id = add(first)
        wait_until(lambda: first.job(id).info.state == "done")
        first.close()
        wait_until(lambda: second.get("/v1/jobs").status == 200)
        assert [job["id"] for job in second.get("/v1/jobs").json()["jobs"]] == [id]


def test_a_process_that_dies_says_why(board: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = board()
    made.begin()
    monkeypatch.setattr(FakeProcess, "folder", Path("/nowhere"), raising=False)
    for code, reason in ((-9, "SIGKILL. The memory may be full"), (3, "code 3")):
        monkeypatch.setattr(FakeProcess, "code", code)
        id = add(made)
        wait_until(lambda id=id: made.job(id).info.state == "failed")
        assert reason in (made.job(id).info.error or "")
    made.close()


def test_a_job_that_always_takes_the_service_down_is_given_up(board: Any) -> None:
    made = board()
    id = add(made)
    made.job(id).in_vain = ATTEMPTS
    made.job(id).save()
    again = board()
    again.begin()
    wait_until(lambda: again.job(id).info.state == "failed")
    assert "started 3 times" in (again.job(id).info.error or "")
    again.close()


@pytest.mark.parametrize("steps", [(5, 9, 12, 20, 30), (5, 5, 4)])
def test_a_start_counts_as_vain_unless_it_gets_further(board: Any, steps: tuple[int, ...]) -> None:
    """Each step is where a start was when the service was killed; the process of the next one goes on from before."""
    made = board()
    id = add(made)
    for step in steps:
        made = board()
        made._read()
        job = made.job(id)
        job.attempts, job.in_vain = job.attempts + 1, job.in_vain + 1
        for number in (1, step):
            with made._changed:
                made._count_progress(job, number)
                made._tell(job, {"event": "progress", "step": number})
        job.save()
    assert job.in_vain == (0 if steps[-1] == 30 else 2) and job.attempts == len(steps)


def test_a_job_that_was_never_accepted_is_no_job(board: Any, own: Bank) -> None:
    made = board()
    with contextlib.suppress(RuntimeError), made.new_folder() as folder:
        (folder / "data.csv").write_text("x")
        raise RuntimeError
    assert not folder.exists()
    (own.store.folder / "work" / "jobs" / "job-x").mkdir()
    made.begin()
    assert made.infos() == []
    made.close()


def preview(service: Running, content: bytes, **options: str) -> dict[str, Any]:
    target = "/v1/jobs/preview?" + urllib.parse.urlencode({"task": "new", **options})
    reply = service.ask("POST", target, content, {"Content-Type": "text/csv"})
    assert reply.status == 200, reply.content
    return reply.json()


def test_a_preview_names_columns_labels_and_problems(own: Bank) -> None:
    rows = opinions(40, seed=2)
    lines = [f"{row['text']} {i},{row['label']}" for i, row in enumerate(rows)]
    content = "\n".join(["Text,verdict", *lines]).encode()
    with running(own, jobs=True) as service:
        unnamed = preview(service, content)
        assert unnamed["columns"] == ["Text", "verdict"] and "label" in unnamed["problem"]
        assert unnamed["examples"][0] == {"Text": f"{rows[0]['text']} 0", "verdict": rows[0]["label"]}
        found = preview(service, content, label="verdict")
        assert "problem" not in found and found["kind"] == "label"
        assert (found["text"], found["label"]) == ("Text", "verdict")
        assert sum(found["labels"].values()) == sum(found["rows"].values()) == 40
        missing = content + b"\na text without a label,"
        assert "label" in preview(service, missing, label="verdict")["problem"]
        dropped = preview(service, missing, label="verdict", drop_missing="true")
        assert "problem" not in dropped and sum(dropped["rows"].values()) == 40
        assert "magic" in preview(service, content, label="verdict", metric="magic")["problem"]
        assert "magic" in preview(service, content, label="verdict", method="magic")["problem"]
        problem = preview(service, b"\xff\xfe\xfa")["problem"]
        assert "data.csv" in problem and "intarsia-preview" not in problem
        assert service.get("/v1/jobs").json()["jobs"] == []
