"""Fault injection: each write, link and sync of a workload fails once.

Runs as a program: ``python -m tests.campaigns.fault_walk``. A fixed workload runs on a single
shard: appends of every durability class, bursts, a streamed append, rotation, sealing, checkpoints,
merges, deletes of records and of a topic, changes of the class, routers within the shard, and an
orderly stop. Its calls that write, link or sync are numbered from 1 to N. Then the workload is
repeated for each of these calls. Either this call fails (ENOSPC for writes and links, EIO for
syncs), or this call and all later calls of its kind. The run ends with an orderly stop or a kill.
Syncs are made by the thread of the log or, where permitted, by the loop of the shard. Afterwards
these states are checked:

    a power loss immediately            all records of synced durability classes exist
    a restart of the process            every acknowledged record exists once, with its seq; no
                                        refused record is visible; writes continue, and no seq is
                                        assigned twice; copies are unchanged, in order and not
                                        duplicated; `topics verify` finds no damage
    a power loss after the restart      the same, including data that the kernel marked clean in
                                        the failed sync, because the start writes it again

Each reported error contains the arguments that repeat it.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio

from tests.actors.shard.sealing.sealing_support import eager_merges
from tests.campaigns.fault_disk import FaultDisk
from tests.campaigns.fault_workload import FILE_BYTES, Journal, WorkloadRun
from tests.campaigns.killer import Summary, program
from tests.support.log import Client
from tests.support.wal import sync_by
from topics.actors.shard import appends
from topics.actors.shard.context import clock
from topics.actors.shard.sealing import merging
from topics.actors.shard.sealing.merging import choose_run
from topics.storage.data_dir import DataDirectory
from topics.storage.verify import Finding, verify_directory
from topics.storage.wal import writer as wal_writer

STREAMED_MIN_BYTES = 8 << 10
SYNC_BYTES = 4 << 10
MERGED_MAX_BYTES = 64 << 10
AFTER = "1000000"  # the number of the records that are written after the fault


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``index`` 0: no call fails."""

    index: int = 0
    persists: bool = False
    stop: bool = False
    loop: bool = False

    @property
    def mode(self) -> str:
        named = {"persists": self.persists, "stop": self.stop, "loop": self.loop}
        return "+".join(name for name, is_set in named.items() if is_set) or "plain"

    def __str__(self) -> str:
        return f"--first {self.index} --last {self.index} --only {self.mode}"


def run_case(case: Case, folder: Path) -> tuple[list[str], list[str]]:
    """Run a case. Return the errors and the calls that were made."""
    path, journal, errors = folder / "data", Journal(), []
    with pytest.MonkeyPatch.context() as patch, FaultDisk(path, folder / "unlinked") as disk:
        patch.setattr(appends, "STREAMED_MIN_BYTES", STREAMED_MIN_BYTES)
        patch.setattr(wal_writer, "SYNC_BYTES", SYNC_BYTES)
        eager_merges(patch)
        patch.setattr(merging, "choose_run", lambda some, _: choose_run(some, MERGED_MAX_BYTES))
        sync_by(patch, loop=case.loop)
        disk.fail_at, disk.persists = case.index, case.persists
        started = False
        try:
            trio.run(lambda: WorkloadRun(path, disk, journal).run(stop=case.stop))
            started = True
        except OSError as error:
            if journal.answered or disk.failed is None:
                errors.append(f"{case} ({disk.failed}): {error!r} {traceback.format_exc(limit=-3)}")
        except Exception:
            errors.append(f"{case} ({disk.failed}): {traceback.format_exc(limit=-6)}")
        calls = list(disk.calls)
        name = f"{case} ({disk.failed})"
        disk.stop_failing()
        if started:
            disk.dead = True
            lost_power_dir = disk.power_loss(folder / "left")
            errors += judge(
                lost_power_dir, _copy(journal), f"{name}, power lost", power=True, boot="other"
            )
        disk.dead = False
        DataDirectory(path, shards=1).close()
        errors += judge(path, journal, f"{name}, started again", power=False, boot="b")
        lost_power_dir = disk.power_loss(folder / "later")
        # The start has rewritten and synced records that the durability classes alone do not
        # guarantee.
        errors += judge(
            lost_power_dir, journal, f"{name}, started again, power lost", power=False, boot="other"
        )
    return errors, calls


def judge(path: Path, journal: Journal, what: str, *, power: bool, boot: str) -> Iterator[str]:
    """Start on ``path``, check everything, and write once more to every topic. The process is
    killed afterwards.
    """
    try:
        client = Client(path, boot=boot, now=clock(), file_bytes=FILE_BYTES, sync_ms=60_000)
    except Exception as error:  # any exception is a finding
        yield f"{what}: the start fails: {error!r} {traceback.format_exc(limit=-3)}"
        return
    try:
        for topic in journal.deleted_topics & client.engine.topics.keys():
            yield f"{what}: topic {topic} exists although it was deleted"
        for router in journal.routed - client.engine.routers.by_name.keys():
            yield f"{what}: router {router} is missing"
        for topic, records in journal.records.items():
            if topic not in client.engine.topics:
                yield f"{what}: topic {topic} is missing"
                continue
            yield from _judge_topic(client, topic, records, journal, what, power=power)
        yield from _append_again(client, journal, what)
    finally:
        client.kill()
    yield from (
        f"{what}: verify: {found}"
        for found in verify_directory(path, 1)
        if isinstance(found, Finding)
    )


def _judge_topic(
    client: Client, topic: str, records: dict[int, str], journal: Journal, what: str, *, power: bool
) -> Iterator[str]:
    shown = _read_all(client, topic)
    refused = {seq: data for seq, data in shown.items() if data in journal.refused}
    if refused:
        yield f"{what}: {topic} returns refused records {refused}"
    if topic in journal.routed:
        numbers = [int(data) for data in shown.values() if data != AFTER]
        if any(after <= before for before, after in pairwise(numbers)):
            yield f"{what}: {topic} has duplicate copies, or copies out of order: {numbers}"
    if power and journal.classes[topic] != "fsync":
        return
    missing = {seq: data for seq, data in records.items() if shown.get(seq) != data}
    if missing:
        yield f"{what}: {topic} has lost {missing}"
    returned = {seq: data for seq, data in shown.items() if data in journal.deleted.get(topic, ())}
    if returned:
        yield f"{what}: {topic} returns deleted records {returned}"


def _read_all(client: Client, topic: str) -> dict[int, str]:
    shown: dict[int, str] = {}
    seq, page = 0, client.read(topic)
    while True:
        for record in msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.chunks))):
            shown[record["$seq"]] = record["data"].split()[0]
        if page.caught_up:
            return shown
        assert page.next_from_seq > seq, "the reader makes no progress"
        seq = page.next_from_seq
        page = client.read(topic, seq)


def _append_again(client: Client, journal: Journal, what: str) -> Iterator[str]:
    for topic in journal.records.keys() & client.engine.topics.keys():
        first, _ = client.append(topic, f"{AFTER} after")
        if first <= journal.highest.get(topic, 0):
            yield f"{what}: {topic} assigns seq {first} after {journal.highest[topic]}"
        if journal.classes[topic] == "fsync":
            journal.records[topic][first] = AFTER
        journal.highest[topic] = first


def _copy(journal: Journal) -> Journal:
    return msgspec.convert(msgspec.to_builtins(journal), Journal)


def run_in_temporary_folder(case: Case) -> tuple[list[str], list[str]]:
    """Run `run_case` in memory, and remove its files."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        return run_case(case, Path(folder))


def disable_logging() -> None:
    """Disable logging, because the shard logs expected errors."""
    structlog.configure(processors=[_drop])


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent


def campaign(_: Path, *, seed: int, first: int, last: int, every: int, only: str) -> Summary:
    """Run faults of the calls ``first`` to ``last`` (0: all) in the mode that a finding names, or
    in all modes.
    """
    disable_logging()
    summary = Summary(seed)
    modes = [Case(0, *flags) for flags in product((False, True), repeat=3)]
    for mode in (each for each in modes if only in ("", each.mode)):
        errors, calls = run_in_temporary_folder(Case(stop=mode.stop, loop=mode.loop))
        assert not errors, "without a fault:\n" + "\n".join(errors)
        summary.print_progress(f"{mode.mode}: {len(calls)} calls")
        for index in range(first, (last or len(calls)) + 1, every):
            found, _calls = run_in_temporary_folder(replace(mode, index=index))
            summary.counts["runs"] += 1
            summary.problems += found
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, first=1, last=0, every=1, only=""))
