"""Every write, link and sync fails once: ``python -m tests.campaigns.fault_walk``.

One fixed workload runs on a shard of its own: appends of every class, bursts, a streamed append,
rotation, sealing, checkpoints, merges, deletes of records and of a topic, changes of class, routers
within the shard, an orderly stop. Its calls that write, link or sync are counted, 1 to N; then it
runs anew for each of them with exactly that call failing (ENOSPC for writes and links, EIO for
syncs), or that and all later ones of its kind, and ends in order or by a kill. The log's thread
makes the syncs, or the shard's loop those that it may. Afterwards:

    the power goes at once              everything that a synced class promised is there
    the process starts again            every acknowledged record is there once, with its seq;
                                        nothing refused is shown; writes go on, and no seq is
                                        given twice; copies stand as they were read, in order,
                                        once; `topics verify` finds nothing
    the power goes after that           so it is, also for what the failed sync has marked clean:
                                        the start writes it again

Exit status 0: nothing is wrong. 1: each line says what is, and how to repeat it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio

from tests.actors.shard.sealing.sealing_support import eager_merges
from tests.campaigns.fault_disk import FaultDisk
from tests.campaigns.fault_judge import judge
from tests.campaigns.fault_workload import Journal, Walker
from tests.support.wal import sync_by
from topics.actors.shard import appends
from topics.actors.shard.sealing import merging
from topics.actors.shard.sealing.merging import choose_run
from topics.storage.data_dir import DataDirectory
from topics.storage.wal import writer as wal_writer

STREAMED_MIN_BYTES = 8 << 10
SYNC_BYTES = 4 << 10
MERGED_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``index`` 0: nothing fails."""

    index: int = 0
    goes_on: bool = False
    stop: bool = False
    loop: bool = False

    def __str__(self) -> str:
        named = {"goes-on": self.goes_on, "stop": self.stop, "loop": self.loop}
        flags = "".join(f" --{name}" for name, is_set in named.items() if is_set)
        return f"--from {self.index} --to {self.index}{flags}"


def run_case(case: Case, folder: Path) -> tuple[list[str], list[str]]:
    """What is wrong, and the calls that were made."""
    path, journal, wrong = folder / "data", Journal(), []
    with pytest.MonkeyPatch.context() as patch, FaultDisk(path, folder / "graveyard") as disk:
        patch.setattr(appends, "STREAMED_MIN_BYTES", STREAMED_MIN_BYTES)
        patch.setattr(wal_writer, "SYNC_BYTES", SYNC_BYTES)
        eager_merges(patch)
        patch.setattr(merging, "choose_run", lambda some, _: choose_run(some, MERGED_MAX_BYTES))
        sync_by(patch, loop=case.loop)
        disk.fail_at, disk.goes_on = case.index, case.goes_on
        started = False
        try:
            trio.run(lambda: Walker(path, disk, journal).run(stop=case.stop))
            started = True
        except OSError as error:
            if journal.answered or disk.failed is None:
                wrong.append(f"{case} ({disk.failed}): {error!r} {traceback.format_exc(limit=-3)}")
        except BaseException:
            wrong.append(f"{case} ({disk.failed}): {traceback.format_exc(limit=-6)}")
        calls = list(disk.calls)
        said = f"{case} ({disk.failed})"
        disk.heal()
        if started:
            disk.dead = True
            left = disk.power_loss(folder / "left")
            wrong += judge(left, _copy(journal), f"{said}, power lost", power=True, boot="other")
        disk.dead = False
        DataDirectory(path, shards=1).close()
        wrong += judge(path, journal, f"{said}, started again", power=False, boot="b")
        left = disk.power_loss(folder / "later")
        # The start has written again and synced what the classes alone do not promise.
        wrong += judge(
            left, journal, f"{said}, started again, power lost", power=False, boot="other"
        )
    return wrong, calls


def _copy(journal: Journal) -> Journal:
    return msgspec.convert(msgspec.to_builtins(journal), Journal)


def in_folder(case: Case) -> tuple[list[str], list[str]]:
    """`run_case` in memory, and nothing left of it."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        return run_case(case, Path(folder))


def quiet() -> None:
    """What the shard logs is expected."""
    structlog.configure(processors=[_drop])


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fault_walk")
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument(
        "--to", dest="last", type=int, default=0, help="the last call; without it, all"
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument(
        "--goes-on", action="store_true", help="only the runs in which the disk stays broken"
    )
    parser.add_argument("--stop", action="store_true", help="only the runs that end in order")
    parser.add_argument("--loop", action="store_true", help="only the runs in which the loop syncs")
    asked = parser.parse_args()
    quiet()
    modes = [*product((False, True), repeat=3)]
    if asked.goes_on or asked.stop or asked.loop or asked.first == asked.last:
        modes = [(asked.goes_on, asked.stop, asked.loop)]
    runs = failed = 0
    for goes_on, stop, loop in modes:
        wrong, calls = in_folder(Case(stop=stop, loop=loop))
        assert not wrong, "without a fault:\n" + "\n".join(wrong)
        last = asked.last or len(calls)
        print(
            f"goes on {goes_on}, orderly stop {stop}, loop {loop}: {len(calls)} calls", flush=True
        )
        for index in range(asked.first, last + 1, asked.every):
            wrong, _ = in_folder(Case(index, goes_on, stop, loop))
            runs += 1
            failed += bool(wrong)
            for line in wrong:
                print(line, flush=True)
    print(f"{runs} runs, {failed} with something wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
