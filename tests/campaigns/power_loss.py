"""Power losses: record what a server does to its disk, then judge what a loss at many moments may
have left of it.

Runs as a program: ``CRASHSTATES=... python -m tests.campaigns.power_loss --seed 3 --points 60``. It
needs root and /dev/fuse. Each point is built in every way of ``--policies``: nothing but what was
synced, a first part of the rest, sectors at random, a torn last write, zeros where data belongs.
With routers (``--router-share``) a server goes on from ``--resumed`` of the states: when nothing
lags, every dest of a source that loses nothing holds what the source holds, in its order, once.
``--keep DIR`` leaves the recording there, ``--again DIR`` judges one once more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.campaigns.check_state import ASK
from tests.campaigns.killer import Summary, program
from tests.campaigns.mounts import CRASHSTATES, why_not
from tests.campaigns.power_load import CLASSES, WAL_FILE_BYTES, Mix, mix_of
from tests.campaigns.power_queues import QUEUE_CLASSES
from tests.campaigns.power_routers import ROUTER_SHARDS, ROUTES, Route
from tests.support.api import Api
from tests.support.server import ROOT, Server

POLICIES = "keep,drop,prefix,subset,torn,zeros"
SHARED_MEMORY = Path("/dev/shm")
START_S = 20.0
SETTLED_S = 30.0
POLL_S = 0.02
DEFAULT_MIX = Mix()
WANTED = (
    "segment made",
    "checkpoint made",
    "log file made",
    "log file recycled",
    "blob made",
    "segment unlinked",
    "checkpoint unlinked",
    "blob unlinked",
    "segment marked",
    "segment punched",
    *(
        f"{step} in {durability}"
        for step in ("append", "delete", "remove")
        for durability in CLASSES
    ),
    *(
        f"{step} in {durability}"
        for step in ("claim", "ack", "nack", "extend", "bury")
        for durability in QUEUE_CLASSES
    ),
)
ROUTED_WANTED = ("copies of routers", "remove of routers", "delete of routers")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many directories were judged and how many of them break a promise; ``said`` shows the
    first.
    """

    states: int
    violations: int
    said: str

    def __str__(self) -> str:
        return f"{self.said}\n{self.states} directories judged, {self.violations} violations"


def record(folder: Path, *, seed: int, steps: int, mix: Mix = DEFAULT_MIX) -> Counter[str]:
    """Run the load on a recorded disk, into ``folder``. Gives how often each of `WANTED`, and what
    else of the kind, came to pass.
    """
    disk = folder / "disk"
    disk.mkdir()
    load = [*(sys.executable, "-m", "tests.campaigns.power_load", disk, folder / "acknowledged")]
    load += [seed, steps, json.dumps(mix.asked)]
    command = _crashstates("record", "--dir", disk, "--log", folder / "log", "--", *load)
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"the load ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return what_happened(folder)


def what_happened(folder: Path) -> Counter[str]:
    """What the recorded operations did to files of each kind."""
    command = _crashstates("points", "-v", folder / "log")
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Counter[str] = Counter()
    inodes: dict[tuple[str, str], str] = {}  # by folder's inode and name
    segments: set[str] = set()  # inodes of those that are whole
    for line in told.stdout.splitlines()[1:]:
        _, operation, *rest = line.split()
        if operation == "create":
            inodes[rest[0], rest[1]] = rest[2]
        elif operation == "rename":
            inode = inodes.pop((rest[0], rest[1]), "")
            inodes[rest[2], rest[3]] = inode
            found[f"{_kind(rest[3])} made"] += 1
            found["log file recycled"] += rest[1].endswith(".spare")
            if rest[3].endswith(".seg"):
                segments.add(inode)
        elif operation == "unlink":
            found[f"{_kind(rest[1])} unlinked"] += 1
        elif operation == "link":
            found["file linked"] += 1
        elif operation == "write" and rest[0] in segments:
            found["segment marked"] += 1
        elif operation == "falloc" and rest[0] in segments:
            found["segment punched"] += 1
    with (folder / "acknowledged").open() as notes:
        for note in map(json.loads, notes):
            durability = note["topic"].partition(".")[0]
            if durability in CLASSES:
                found[f"{note['step']} in {durability}"] += 1
            elif durability == "routed":
                found[f"{note['step']} of routers"] += 1
    return found


def _kind(name: str) -> str:
    kinds = {"seg": "segment", "ckpt": "checkpoint", "blob": "blob", "wal": "log file"}
    return kinds.get(name.rpartition(".")[2], "other file")


def judge(
    folder: Path,
    *,
    points: int,
    seeds: int = 1,
    policies: str = POLICIES,
    models: str = "ext4",
    stop: int = 0,
) -> Verdict:
    """Build the states, each model's beside the other's, and judge each."""
    with _scratch(folder) as scratch, _judge_at(folder / "acknowledged", scratch) as ask:
        checks = [
            subprocess.Popen(
                _crashstates(
                    *("check", folder / "log", "--policies", policies, "--models", model),
                    *("--seeds", seeds, "--max", points, "--stop", stop),
                    *("--work", scratch / model, "--", *ask),
                ),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for model in models.split(",")
        ]
        said, states, violations = [], 0, 0
        for check in checks:
            lines = check.communicate()[0].strip().splitlines()
            assert lines, "no verdict"
            counts = json.loads(lines[-1])
            states, violations = states + counts["states"], violations + counts["violations"]
            said += lines[:-1]
    return Verdict(states, violations, "\n".join(said))


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Where states are built: in memory, where there is room for it."""
    with tempfile.TemporaryDirectory(
        prefix="topics-power-loss-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else folder
    ) as directory:
        yield Path(directory)


@contextlib.contextmanager
def _judge_at(acknowledged: Path, scratch: Path) -> Iterator[list[str]]:
    """The command that has a directory judged, by a process that has been started before."""
    path = scratch / "judge"
    serve = [sys.executable, "-m", "tests.campaigns.check_state"]
    serve += [str(acknowledged), str(path)]
    judge = subprocess.Popen(serve, cwd=ROOT, env=_environment())
    try:
        deadline = time.monotonic() + START_S
        while not path.exists():
            assert judge.poll() is None, "the judge did not start"
            assert time.monotonic() < deadline, "the judge takes too long to start"
            time.sleep(0.01)
        yield [sys.executable, "-S", "-E", "-c", ASK, str(path)]
    finally:
        judge.kill()
        judge.wait()


def _crashstates(*arguments: object) -> list[str]:
    """A command of the program that records and builds states of a disk."""
    return [sys.executable, str(CRASHSTATES), *map(str, arguments)]


def _environment() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(ROOT))


def resume(folder: Path, scratch: Path, *, count: int, seed: int, policies: str) -> list[str]:
    """What is wrong after ``count`` losses at random."""
    command = _crashstates("points", folder / "log")
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    points = json.loads(told.stdout.splitlines()[0])["points"]
    dice, wrong = random.Random(seed), []
    for number in range(count):
        at, policy = dice.randrange(points // 10, points), dice.choice(policies.split(","))
        path = scratch / f"resumed-{number}"
        chosen = "--policy", policy, "--seed", number
        command = _crashstates("replay", folder / "log", at, path, *chosen)
        subprocess.run(command, capture_output=True, check=True)
        wrong += [f"point {at}, {policy}, seed {number}: {said}" for said in _problems(path)]
    return wrong


def _problems(data_dir: Path) -> list[str]:
    server = Server(data_dir, shards=ROUTER_SHARDS, wal_file_bytes=WAL_FILE_BYTES)
    try:
        with server, Api(server.address) as api:
            wrong = [said for route in ROUTES for said in _differs(api, route)]
            wrong += [
                str(event)
                for event in (server.log.events() if server.log else [])
                if event.get("event") == "process died"
            ]
            return wrong
    except AssertionError as error:
        return [str(error)[-600:]]


def _differs(api: Api, route: Route) -> Iterator[str]:
    deadline = time.monotonic() + SETTLED_S
    while (answer := api.call("GET", f"/v0/routers/{route.router}")).status != 404:
        told = answer.json()  # while routers are removed whose ends were lost: a 503
        if told.get("lag_records") == 0:
            break
        if time.monotonic() > deadline:
            yield f"{route.router} lags on: {told}"
            return
        time.sleep(POLL_S)
    else:
        return  # not made yet, or its source is deleted
    there = _data(api, route.dest)
    if any(after <= before for before, after in pairwise(there)):
        yield f"{route.dest} is not in order: {there}"
    if route.kind == "plain" and there != (wanted := _data(api, route.root)):
        missing = [origin for origin in wanted if origin not in there]
        more = [origin for origin in there if origin not in wanted]
        yield f"{route.dest} lacks {missing} and has {more}, as {route.root} has not"
    if route.kind == "plain" and told["forwarded_total"] != len(there):
        yield f"{route.router} has forwarded {told['forwarded_total']}, {len(there)} are there"


def _data(api: Api, topic: str) -> list[Any]:
    """Which records: the number of the append, and the position in it."""
    return [record["data"][:2] for record in api.read(topic)]


def campaign(
    data_dir: Path,
    *,
    seed: int,
    steps: int,
    points: int,
    seeds: int,
    policies: str,
    models: str,
    resumed: int,
    keep: str,
    again: str,
    **mixed: Any,
) -> Summary:
    """Record, unless a recording is to be judged ``again``, and judge. ``seeds``: random choices
    for each point and policy.
    """
    assert not why_not(), why_not()
    summary, mix = Summary(seed), mix_of(mixed)
    folder = Path(again or keep or data_dir)
    folder.mkdir(exist_ok=True)
    if not again:
        summary.counts = record(folder, seed=seed, steps=steps, mix=mix)
        wanted = WANTED if mix == DEFAULT_MIX else ROUTED_WANTED if mix.router_share else ()
        missing = [what for what in wanted if not summary.counts[what]]
        assert not missing, f"this load proves little: {missing} never happened"
    verdict = judge(folder, points=points, seeds=seeds, policies=policies, models=models)
    summary.tell(str(verdict))
    summary.problems += [str(verdict)] if verdict.violations else []
    if resumed:
        with _scratch(folder) as scratch:
            summary.problems += resume(folder, scratch, count=resumed, seed=seed, policies=policies)
    return summary


if __name__ == "__main__":
    sys.exit(
        program(
            __doc__,
            campaign,
            steps=700,
            points=60,
            seeds=1,
            policies=POLICIES,
            models="ext4,strict",
            resumed=0,
            keep="",
            again="",
            **DEFAULT_MIX.asked,
        )
    )
