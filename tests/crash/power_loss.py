"""Power losses: record what a server does to its disk, then judge what a loss at many moments may have left of it.

Runs as a program: ``CRASHSTATES=... python -m tests.crash.power_loss --seed 3 --points 60``. It needs root and /dev/fuse. Each point is
built in every way of ``--policies``: nothing but what was synced, a first part of the rest, sectors at random, a torn last write,
zeros where data belongs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.crash.mounts import CRASHSTATES, why_not
from tests.server import ROOT

POLICIES = "keep,drop,prefix,subset,torn,zeros"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many directories were judged and how many of them break a promise; ``said`` shows the first."""

    states: int
    violations: int
    said: str

    def __str__(self) -> str:
        return f"{self.said}\n{self.states} directories judged, {self.violations} violations"


def record(folder: Path, *, seed: int, steps: int, deletes: bool = True) -> None:
    """Run the load on a recorded disk, into ``folder``."""
    load = [sys.executable, "-m", "tests.crash.power_load", str(folder / "disk"), str(folder / "acknowledged")]
    load += ["--seed", str(seed), "--steps", str(steps), *([] if deletes else ["--no-deletes"])]
    (folder / "disk").mkdir()
    command = [sys.executable, CRASHSTATES, "record", "--dir", str(folder / "disk"), "--log", str(folder / "log"), "--", *load]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the load ended with {done.returncode}:\n{done.stderr[-3000:]}"


def judge(folder: Path, *, points: int, seeds: int = 1, policies: str = POLICIES, models: str = "ext4", stop: int = 0) -> Verdict:
    """Build the states and run the checker on each."""
    command = [
        sys.executable, CRASHSTATES, "check", str(folder / "log"), "--policies", policies, "--models", models, "--seeds", str(seeds),
        "--max", str(points), "--stop", str(stop), "--work", str(folder / "state"), "--", sys.executable, "-m",
        "tests.crash.check_state", str(folder / "acknowledged"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    assert lines, f"no verdict:\n{done.stderr[-3000:]}"
    counts = json.loads(lines[-1])
    return Verdict(counts["states"], counts["violations"], "\n".join(lines[:-1]))


def _environment() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1, help="random choices for each point and policy")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--models", default="ext4,strict")
    parser.add_argument("--no-deletes", action="store_true")
    arguments = parser.parse_args()
    if why_not():
        print(why_not(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="topics-power-loss-") as directory:
        folder = Path(directory)
        record(folder, seed=arguments.seed, steps=arguments.steps, deletes=not arguments.no_deletes)
        verdict = judge(
            folder, points=arguments.points, seeds=arguments.seeds, policies=arguments.policies, models=arguments.models
        )  # fmt: skip
    print(f"seed {arguments.seed}: {verdict}")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
