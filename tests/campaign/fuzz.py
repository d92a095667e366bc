"""Fuzzed inputs: inlay files, data files, model folders and stored states. Each is accepted, or refused with an error
for the user; no traceback, no hang, no dead process.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import mmap
import random
import resource
import shutil
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from intarsia.errors import IntarsiaError
from tests.campaign.bank import World
from tests.campaign.children import in_child
from tests.campaign.tally import Budget, Tally, draw_for

SECONDS = 10  # after which an input counts as a hang
MEMORY = 4 << 30  # bytes that a process of inputs may take above what it has
# The number of inputs in one process, and the kinds' chances.
A_PROCESS = {"inlays": 20000, "headers": 4000, "readers": 2000, "columns": 2000, "states": 2000, "models": 12,
             "strangers": 200}  # fmt: skip
CHANCES = {"inlays": 10, "headers": 6, "readers": 3, "columns": 3, "states": 2, "models": 3, "strangers": 2}

TOKENS = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"{", b"[", b"]", b"}", b",", b"\n", b"\r", b"\t", b"null", b"NaN",
    b"-1", b"1e999", b"9" * 400, b"[" * 2000, b'{"a":' * 500, b"true", b"\\ud800", b"\x1b[2J", b"data_offsets", b"F32",
    b"shape", b"18446744073709551616",
)  # fmt: skip

Target = Callable[[random.Random], None]


class Hung(BaseException):
    """An input took longer than `SECONDS`."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return changed content: flipped, cut, doubled, moved, spliced with tokens that parsers stumble over."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        size = len(data)
        at = draw.randrange(size + 1)
        # Half of the changes are near the start, where the structure is.
        at = min(at, draw.randrange(400)) if draw.random() < 0.5 else at
        kind = draw.randrange(8)
        if kind == 0 and size:
            data[min(at, size - 1)] ^= 1 << draw.randrange(8)
        elif kind == 1 and size:
            data[min(at, size - 1)] = draw.randrange(256)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + draw.choice((1, 2, 8, 64))]
        elif kind == 4:
            data[at:at] = draw.choice(TOKENS)
        elif kind == 5:
            data[at : at + draw.choice((1, 4, 8))] = draw.choice(TOKENS)
        elif kind == 6:
            data[at:at] = data[at : at + draw.choice((1, 8, 100))] * draw.choice((1, 2, 50))
        else:
            data[at:at] = bytes(draw.randrange(256) for _ in range(draw.randrange(9)))
    return bytes(data)


def run(world: World, budget: Budget) -> Tally:
    """Fuzz all kinds of inputs in turn, thousands in each process."""
    tally, first = Tally(), budget.first
    values_of()  # once, before the children
    draw = draw_for(budget.seed * 10**9 + first)
    while time.monotonic() < budget.ends and first < budget.first + budget.most:
        kind = draw.choices(list(CHANCES), list(CHANCES.values()))[0]
        count = min(A_PROCESS[kind], budget.first + budget.most - first)
        seeds = range(budget.seed * 10**9 + first, budget.seed * 10**9 + first + count)
        tally.take(batch(world, kind, seeds, budget.ends))
        first += count
    tally.counts["next"] = first - budget.first
    return tally


def batch(world: World, kind: str, seeds: range, ends: float) -> Tally:
    """Run the inputs of some seeds in a child. If it dies, the input that it died of is a failure."""
    tally, place = Tally(), mmap.mmap(-1, 8)  # shared with the child: the number of the input
    at = 0
    while at < len(seeds) and time.monotonic() < ends:

        def work() -> Tally:
            return _inputs(world, kind, seeds[at:], place, ends)  # noqa: B023

        place[:8] = struct.pack("q", 0)
        ended = in_child(work, longest=600)
        if isinstance(ended.value, Tally):
            tally.take(ended.value)
            return tally
        done = struct.unpack("q", place[:8])[0]
        tally.counts["inputs"] += done + 1
        tally.counts[f"inputs: {kind}"] += done + 1
        tally.fail(f"fuzz: {kind}", seeds[at + done], ended.trace or f"the process ended with {ended.status}")
        at += done + 1
    return tally


def _inputs(world: World, kind: str, seeds: range, place: mmap.mmap, ends: float) -> Tally:
    tally, folder = Tally(), world.folder / "fuzz"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target = TARGETS[kind](world, folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, hard))

    def hang(*_: object) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, hang)
    for number, seed in enumerate(seeds):
        if number % 64 == 0 and time.monotonic() > ends:
            break
        place[:8] = struct.pack("q", number)
        tally.counts["inputs"] += 1
        tally.counts[f"inputs: {kind}"] += 1
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target(draw_for(seed))
            tally.counts["accepted"] += 1
        except IntarsiaError:
            tally.counts["refused"] += 1
        except BaseException as error:
            import traceback

            tally.fail(f"fuzz: {kind}", seed, traceback.format_exc(limit=-6) or repr(error))
        finally:
            signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return tally


# What is fuzzed. Each function prepares a folder once and returns what runs one input.


def inlays(world: World, folder: Path) -> Target:
    """Files of a bank with changed bytes, read as `tasks`, `verify` and `predict` read them; most without a disk."""
    from intarsia.bank.inlay import check_content, check_file, read_header, read_inlay

    paths = sorted((world.template / "inlays").glob("*/*.safetensors"))
    originals = [path.read_bytes() for path in paths]
    path = folder / "0001.safetensors"

    def one(draw: random.Random) -> None:
        content = mutated(draw.choice(originals), draw)
        if draw.random() < 0.9:
            check_content(content, path)
            return
        path.write_bytes(content)
        for read in (read_header, check_file, read_inlay):
            read(path)

    return one


def headers(world: World, folder: Path) -> Target:
    """Inlays whose digest is right and whose description or tensors are not: listed, shown and loaded on the base."""
    import torch

    from intarsia.bank.inlay import read_inlay
    from intarsia.bank.store import Store
    from intarsia.cli.tables import learned, show_table
    from tests.support.forging import forged, plant

    values = values_of()

    def change(draw: random.Random, described: dict[str, Any], tensors: dict[str, Any]) -> None:
        for _ in range(draw.choice((1, 1, 2, 3))):
            holder: Any = described
            while True:
                key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
                inner = holder[key]
                if not isinstance(inner, dict | list) or not inner or draw.random() < 0.3:
                    break
                holder = inner
            if draw.random() < 0.2:
                del holder[key]
            else:
                holder[key] = values(draw)
            if not described:
                return
        if draw.random() < 0.3:
            name = draw.choice(list(tensors))
            shape = [draw.choice((0, 1, 2, 7, 32)) for _ in range(draw.randrange(4))]
            kind = draw.choice((torch.float32, torch.float16, torch.int64, torch.bool, torch.float64))
            tensors[draw.choice((name, "method.x", "head.bias"))] = torch.ones(shape).to(kind)

    path = folder / "kept.safetensors"

    def one(draw: random.Random) -> None:
        try:
            content = forged(world.inlay, lambda fields, tensors: change(draw, fields, tensors))
        except (IndexError, UnicodeEncodeError, IntarsiaError):  # nothing left to change; half of a surrogate pair
            return
        if draw.random() < 0.05:
            bank = Store(folder / "bank")
            plant(bank.folder, "kept", content)
            for entry in bank.entries():
                bank.verify()
                if entry.state == "ok":
                    entry.to_dict(), learned(entry), show_table(entry, [entry])
        path.write_bytes(content)
        inlay = read_inlay(path)
        inlay.interface.task_kind  # noqa: B018
        inlay.learned_on(world.encoder)

    return one


@functools.cache
def values_of() -> Callable[[random.Random], Any]:
    """Return a source of JSON values that no description should hold."""
    try:
        from hypothesis import HealthCheck, given, settings
        from hypothesis import seed as seeded
        from hypothesis import strategies as st
    except ImportError:
        return plain_value
    numbers = (
        st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**30, -1, 2**63, 1e30])
    )
    leaves = st.none() | st.booleans() | numbers | st.text(max_size=20)
    strategy = st.recursive(
        leaves, lambda s: st.lists(s, max_size=4) | st.dictionaries(st.text(max_size=8), s, max_size=4)
    )
    pool: list[Any] = []

    def refill(seed: int) -> None:
        @seeded(seed)
        @settings(max_examples=300, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def collect(value: Any) -> None:
            pool.append(value)

        collect()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refill(0)
    # Copies, because a case may put one value into another.
    return lambda draw: copy.deepcopy(draw.choice(pool)) if draw.random() < 0.7 else plain_value(draw)


def plain_value(draw: random.Random) -> Any:
    return draw.choice(
        [None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e30, -0.5, "", "x", "label", "\x1b[2J", "[red]", [], [[]], [None],
         {}, {"a": 1}, [1] * 50, ["a", "a"], "bottleneck", "lora", "mean", "x" * 3000, {"size": 10**9}, 0.1]
    )  # fmt: skip


def readers(world: World, folder: Path) -> Target:
    """Data files of every ending, with changed bytes: read as tasks, as texts and as questions."""
    from intarsia.tasks import load_data
    from intarsia.tasks.data import load_texts

    originals = dict(data_files())

    def one(draw: random.Random) -> None:
        ending = draw.choice(list(originals))
        content = mutated(originals[ending], draw)
        if ending.endswith(".gz") and draw.random() < 0.7:  # a whole archive of a damaged file
            content = gzip.compress(mutated(gzip.decompress(originals[ending]), draw), 1)
        path = folder / f"data{ending}"
        path.write_bytes(content)
        try:
            (load_data if draw.random() < 0.8 else load_texts)(path)
        finally:
            path.unlink()

    return one


def data_files() -> Iterator[tuple[str, bytes]]:
    """Yield an ending and a small intact file of it."""
    import pyarrow as pa
    from pyarrow import parquet

    word = ("bad", "good")
    rows = [{"text": f'a {word[n % 2]} text number {n}, "quoted"', "label": "yn"[n % 2]} for n in range(24)]
    csv = "text,label\r\n" + "".join(
        f'"{row["text"].replace(chr(34), chr(34) * 2)}",{row["label"]}\r\n' for row in rows
    )
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    tags = "".join(json.dumps({"tokens": ["a", "b", str(n)], "tags": ["O", "B-X", "I-X"]}) + "\n" for n in range(24))
    qas = [{"id": str(n), "question": "who?", "answers": [{"text": "river", "answer_start": 4}]} for n in range(24)]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "the river flows", "qas": qas}]}]}
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), sink)
    yield ".csv", csv.encode()
    yield ".tsv", csv.replace(",", "\t").encode()
    yield ".jsonl", lines.encode()
    yield ".tags.jsonl", tags.encode()
    yield ".json", json.dumps(squad).encode()
    yield ".txt", "\n".join(row["text"] for row in rows).encode()
    yield ".parquet", sink.getvalue()
    yield ".csv.gz", gzip.compress(csv.encode())
    yield ".jsonl.gz", gzip.compress(lines.encode())
    yield ".json.gz", gzip.compress(json.dumps(squad).encode())
    yield ".jsonl.zst", bytes(pa.compress(lines.encode(), codec="zstd", asbytes=True))


def strangers(world: World, folder: Path) -> Target:
    """Forged inlays in a bank whose other tasks must go on answering as before (tests/support/fuzz_inlays.py)."""
    from tests.support.fuzz_inlays import Fuzz, prepared

    tried = Fuzz(prepared(folder / "bank"))

    def one(draw: random.Random) -> None:
        outcome = tried.one(draw.randrange(2**40))
        if outcome == "refused":
            raise IntarsiaError(outcome)
        if outcome != "answered":
            raise AssertionError(outcome)

    return one


def columns(world: World, folder: Path) -> Target:
    """Data files of all formats, kinds and ways to read them (tests/support/fuzz_readers.py)."""
    from tests.support.fuzz_readers import one as read

    def one(draw: random.Random) -> None:
        outcome = read(draw.randrange(2**40), folder)
        if outcome == "refused":
            raise IntarsiaError(outcome)
        if outcome != "read":
            raise AssertionError(outcome)

    return one


def states(world: World, folder: Path) -> Target:
    """Checkpoints, results and bank.json with changed bytes; what is accepted must be what was written."""
    import torch

    from intarsia import files
    from intarsia.bank.manifest import read_manifest
    from intarsia.train.checkpoint import State, read, write

    tensors = {"now": torch.arange(64.0)[None], "best": torch.ones(1, 64)}
    checkpoint, result, manifest = (folder / name for name in ("state.safetensors", "result.json", "bank.json"))
    state = State(step=9, best=0.5, history=[{"epoch": 1}])
    value = {"key": "k", "dev": 0.25, "settings": {"seed": 0}}
    write(checkpoint, state, tensors)
    files.replace_checked(result, value)
    intact = checkpoint.read_bytes(), result.read_bytes(), (world.template / "bank.json").read_bytes()

    def one(draw: random.Random) -> None:
        which = draw.randrange(3)
        path = (checkpoint, result, manifest)[which]
        path.write_bytes(mutated(intact[which], draw))
        if which == 0:
            found = read(path)
            if found is not None:
                assert found[0] == state and all(torch.equal(found[1][k], v) for k, v in tensors.items())
        elif which == 1:
            try:
                read_back = files.read_checked(path)
            except ValueError:
                raise IntarsiaError("damaged") from None
            if isinstance(read_back, dict) and "key" in read_back and path.read_bytes().count(b"checksum"):
                assert read_back == value
        else:
            read_manifest(path)

    return one


def models(world: World, folder: Path) -> Target:
    """Model folders with a changed file."""
    from intarsia.encoder.encoder import Encoder
    from tests.support.families import save_tiny

    original = Path(save_tiny(folder / "original"))
    names = sorted(path.name for path in original.iterdir())

    def one(draw: random.Random) -> None:
        target = folder / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(original, target)
        path = target / draw.choice(names)
        if draw.random() < 0.1:
            path.unlink()
        elif path.suffix == ".json" and draw.random() < 0.6:
            described = json.loads(path.read_bytes())
            if isinstance(described, dict):
                described[draw.choice(list(described))] = plain_value(draw)
            path.write_text(json.dumps(described))
        else:
            path.write_bytes(mutated(path.read_bytes(), draw))
        Encoder.load(str(target))

    return one


TARGETS: dict[str, Callable[[World, Path], Target]] = {
    "inlays": inlays, "headers": headers, "readers": readers, "columns": columns, "states": states, "models": models,
    "strangers": strangers,
}  # fmt: skip
