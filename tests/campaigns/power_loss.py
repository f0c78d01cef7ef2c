"""Power losses: record what a server does to its disk, then judge what a loss at many moments may
have left of it.

Runs as a program: ``CRASHSTATES=... python -m tests.campaigns.power_loss --seed 3 --points 60``. It
needs root and /dev/fuse. Each point is built in every way of ``--policies``: nothing but what was
synced, a first part of the rest, sectors at random, a torn last write, zeros where data belongs.
With routers (``--router-share``) a server goes on from ``--resume`` of the states.
``--keep DIR`` leaves the recording there, ``--again DIR`` judges one once more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.check_state import ASK
from tests.campaigns.mounts import CRASHSTATES, why_not
from tests.campaigns.power_load import CLASSES, Mix, add_mix, mix_of
from tests.campaigns.power_queues import QUEUE_CLASSES
from tests.campaigns.power_resume import resume
from tests.support.server import ROOT

POLICIES = "keep,drop,prefix,subset,torn,zeros"
SHARED_MEMORY = Path("/dev/shm")
START_S = 20.0
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
    load += ["--seed", seed, "--steps", steps, *mix.options]
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
    serve += [str(acknowledged), "--serve", str(path)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument(
        "--seeds", type=int, default=1, help="random choices for each point and policy"
    )
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--models", default="ext4,strict")
    add_mix(parser)
    parser.add_argument("--resume", type=int, default=0, help="as `power_resume` does")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", type=Path)
    arguments = parser.parse_args()
    if why_not():
        print(why_not(), file=sys.stderr)
        return 2
    mix = mix_of(arguments)
    with tempfile.TemporaryDirectory(prefix="topics-power-loss-") as directory:
        folder = arguments.again or arguments.keep or Path(directory)
        folder.mkdir(exist_ok=True)
        if arguments.again is None:
            happened = record(folder, seed=arguments.seed, steps=arguments.steps, mix=mix)
            print(
                f"seed {arguments.seed}:",
                ", ".join(f"{count} {what}" for what, count in sorted(happened.items())),
                flush=True,
            )
            wanted = WANTED if mix == DEFAULT_MIX else ROUTED_WANTED if mix.router_share else ()
            missing = [what for what in wanted if not happened[what]]
            assert not missing, f"this load proves little: {missing} never happened"
        verdict = judge(
            folder,
            points=arguments.points,
            seeds=arguments.seeds,
            policies=arguments.policies,
            models=arguments.models,
        )
        wrong: list[str] = []
        if arguments.resume:
            with _scratch(folder) as scratch:
                wrong = resume(
                    folder,
                    scratch,
                    count=arguments.resume,
                    seed=arguments.seed,
                    policies=arguments.policies,
                )
    print(f"seed {arguments.seed}: {verdict}")
    print("\n".join([*wrong, f"{arguments.resume} resumed, {len(wrong)} problems"]))
    return 1 if verdict.violations or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
