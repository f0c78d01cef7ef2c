"""Every write and every sync fails once: ``python -m tests.campaigns.fault_walk``.

One fixed workload runs on a shard of its own: appends of every class, bursts, a streamed append,
rotation, sealing, checkpoints, deletes of records and of a topic, changes of class, an orderly
stop. Its calls that write or sync are counted, 1 to N; then it runs anew for each of them with
exactly that call failing (ENOSPC for writes, EIO for syncs), or that and all later ones of its
kind, and ends in order or by a kill. Afterwards:

    the power goes at once              everything that a synced class promised is there
    the process starts again            every acknowledged record is there once, with its seq;
                                        nothing refused is shown; writes go on, and no seq is
                                        given twice; `topics verify` finds nothing
    the power goes after that           so it is, also for what the failed sync has marked clean:
                                        the start writes it again

Exit status 0: nothing is wrong. 1: each line says what is, and how to repeat it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio

from tests.campaigns.fault_disk import FaultDisk
from tests.support.log import Client
from tests.support.shard import Desk
from topics.actors.link.board import ShardState
from topics.actors.shard import appends
from topics.actors.shard.context import clock
from topics.storage.data_dir import DataDirectory
from topics.storage.recovery.steps import recover
from topics.storage.verify.directory import verify_directory
from topics.storage.verify.finding import Finding
from topics.storage.wal import writer as wal_writer

FILE_BYTES = 16 << 10
STREAMED_MIN_BYTES = 8 << 10
SYNC_BYTES = 4 << 10
ANSWER_S = 20.0


@dataclass(slots=True)
class Journal:
    """What the shard has answered."""

    records: dict[str, dict[int, str]] = field(
        default_factory=dict
    )  # by topic, acknowledged and not deleted
    classes: dict[str, str] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)  # seq that was handed out
    refused: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)  # acknowledged deletes of topics
    deleted: dict[str, set[str]] = field(default_factory=dict)
    read_only: bool = False
    answered: int = 0


class Walker:
    """One run of the workload on one shard."""

    def __init__(self, path: Path, disk: FaultDisk, journal: Journal) -> None:
        self.path, self.disk, self.journal = path, disk, journal
        self.desk: Desk
        self._number = 0

    async def run(self, *, stop: bool) -> None:
        """The whole workload, then an orderly stop or a kill."""
        DataDirectory(self.path, shards=1).close()
        shard = recover(
            self.path, 0, 1, clock(), wal_file_bytes=FILE_BYTES, wal_sync_ms=60_000, boot="b"
        )
        try:
            async with trio.open_nursery() as nursery:
                self.desk = Desk(self.path, nursery, shard=shard)
                nursery.start_soon(self.desk.loop.follow_log)
                self.desk.loop.context.room.show()
                await self._work()
                await self._find_room()
                self.journal.read_only = self.desk.loop.context.room.broken is not None
                nursery.cancel_scope.cancel()
            if stop:
                shard.wal.stop()
                if not self.journal.read_only:
                    self.desk.loop.services.sealing.write_last()
        except OSError:
            if not stop:
                raise
        finally:
            self.disk.dead = True
            shard.wal.writer.stop()
            for file in shard.wal._files:
                file.close()

    async def _work(self) -> None:
        for topic, durability in (
            ("f", "fsync"),
            ("d", "disk"),
            ("m", "memory"),
            ("e", "ephemeral"),
            ("g", "fsync"),
            ("c", "disk"),
        ):
            await self._put(topic, durability=durability)
        await self._appends("fdmegc", 3)
        await self._burst("d", 4)
        await self._append("d", 3, 4_000)  # streamed
        await self._append("f", 3, 4_000)
        await self._round()
        await self._delete_records("f", match="even")
        await self._delete_records("d", before_seq=3)
        await self._appends("fdgc", 4)
        await self._put("c", durability="ephemeral")
        await self._appends("ce", 1)
        await self._put("c", durability="fsync")
        await self._round()
        await self._checkpoint()
        await self._delete("g")
        await self._appends("fdmec", 4)
        await self._delete_records("f", match="even")
        await self._append("d", 2, 6_000)
        await self._round()
        await self._checkpoint()
        await self._checkpoint()
        await self._appends("fdc", 3)
        await self._put("g", durability="fsync")
        await self._appends("g", 1)

    # Steps

    async def _put(self, topic: str, **config: Any) -> None:
        if await self._answer(self.desk.put(topic, **config)) is not None:
            self.journal.classes[topic] = config["durability"]
            self.journal.records.setdefault(topic, {})
            self.journal.gone.discard(topic)

    async def _appends(self, topics: str, rounds: int) -> None:
        for _ in range(rounds):
            for topic in topics:
                await self._append(topic, 2, 400)

    def _records(self, count: int, size: int) -> list[dict[str, Any]]:
        made = []
        for _ in range(count):
            self._number += 1
            made.append(
                {
                    "data": f"{self._number} {'x' * size}",
                    "tag": "odd" if self._number % 2 else "even",
                }
            )
        return made

    async def _append(self, topic: str, count: int, size: int) -> None:
        records = self._records(count, size)
        asked = self.desk.append_raw(
            topic, msgspec.json.encode({"records": records, "create": False})
        )
        self._note(topic, records, await self._answer(asked))

    async def _burst(self, topic: str, count: int) -> None:
        parts = [self._records(1, 300) for _ in range(count)]
        number = self.desk.append_many(
            topic, *({"records": part, "create": False} for part in parts)
        )
        self.desk.loop.end_turn()
        with trio.fail_after(ANSWER_S):
            while not self.desk.wire.sent:  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.0002)
        try:
            ((_, answers),) = self.desk.batches()
        except AssertionError:
            answers = [{"code": "refused"}] * count
        assert number
        for part, answer in zip(parts, answers, strict=True):
            self._note(topic, part, None if "code" in answer else answer)

    def _note(
        self, topic: str, records: list[dict[str, Any]], answer: dict[str, Any] | None
    ) -> None:
        if answer is None:
            self.journal.refused |= {record["data"].split()[0] for record in records}
            return
        for seq, record in zip(answer["seqs"], records, strict=True):
            if self.journal.classes[topic] != "ephemeral":
                self.journal.records[topic][seq] = record["data"].split()[0]
            self.journal.highest[topic] = seq

    async def _delete_records(self, topic: str, **asked: Any) -> None:
        held = self.journal.records.get(topic, {})
        if await self._answer(self.desk.delete_records(topic, **asked)) is None:
            return
        for seq in list(held):
            if seq < asked.get("before_seq", 0) or ("match" in asked and int(held[seq]) % 2 == 0):
                self.journal.deleted.setdefault(topic, set()).add(held.pop(seq))

    async def _delete(self, topic: str) -> None:
        if await self._answer(self.desk.delete(topic)) is not None:
            self.journal.records.pop(topic, None)
            self.journal.highest.pop(topic, None)
            self.journal.gone.add(topic)

    async def _answer(self, number: int) -> dict[str, Any] | None:
        """The answer, None when it is a refusal."""
        self.desk.loop.end_turn()
        with trio.fail_after(ANSWER_S):
            while not (found := self.desk.bodies()):  # noqa: ASYNC110 - no event tells
                await trio.sleep(0.0002)
        ((answered, body),) = found
        assert answered == number, "one request at a time"
        self.journal.answered += 1
        return None if "code" in body else body

    async def _round(self) -> None:
        await self._sealing(self.desk.loop.services.sealing._round)

    async def _checkpoint(self) -> None:
        await self._sealing(self.desk.loop.services.sealing.checkpoint)

    async def _sealing(self, what: Any) -> None:
        if self.desk.log.failed is None:
            try:
                await what()
            except OSError:
                return

    async def _find_room(self) -> None:
        """The disk works again: a shard that was short of room goes on without a restart."""
        self.disk.heal()
        room = self.desk.loop.context.room
        room.show()
        if self.desk.words.state == ShardState.NO_ROOM:
            assert await room.find_room(), "there is room"
            if "f" in self.journal.records:
                await self._append("f", 1, 100)
                refused = str(self._number) in self.journal.refused
                assert not refused, "there is room, and the shard does not take it"


# Judging


def judge(path: Path, journal: Journal, what: str, *, power: bool, boot: str) -> Iterator[str]:
    """Start on ``path``, look at everything, write once more to every topic; the process is killed
    afterwards.
    """
    try:
        client = Client(path, boot=boot, now=clock(), file_bytes=FILE_BYTES, sync_ms=60_000)
    except BaseException as error:  # whatever it is, it is a finding
        yield f"{what}: the start fails: {error!r} {traceback.format_exc(limit=-3)}"
        return
    try:
        for topic in journal.gone & client.engine.topics.keys():
            yield f"{what}: topic {topic} was deleted and is there"
        for topic, records in journal.records.items():
            if topic not in client.engine.topics:
                yield f"{what}: topic {topic} is missing"
                continue
            yield from _judge_topic(client, topic, records, journal, what, power=power)
        yield from _go_on(client, journal, what)
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
    shown = _shown(client, topic)
    strangers = {seq: data for seq, data in shown.items() if data in journal.refused}
    if strangers:
        yield f"{what}: {topic} shows refused records {strangers}"
    if power and journal.classes[topic] != "fsync":
        return
    missing = {seq: data for seq, data in records.items() if shown.get(seq) != data}
    if missing:
        yield f"{what}: {topic} has lost {missing}"
    back = {seq: data for seq, data in shown.items() if data in journal.deleted.get(topic, ())}
    if back:
        yield f"{what}: {topic} shows deleted records {back}"


def _shown(client: Client, topic: str) -> dict[int, str]:
    shown: dict[int, str] = {}
    seq, page = 0, client.read(topic)
    while True:
        for record in msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.pieces))):
            shown[record["$seq"]] = record["data"].split()[0]
        if page.caught_up:
            return shown
        assert page.next_from_seq > seq, "a reader gets on"
        seq = page.next_from_seq
        page = client.read(topic, seq)


def _go_on(client: Client, journal: Journal, what: str) -> Iterator[str]:
    for topic in journal.records.keys() & client.engine.topics.keys():
        first, _ = client.append(topic, "1000000 after")
        if first <= journal.highest.get(topic, 0):
            yield f"{what}: {topic} gives seq {first} again, {journal.highest[topic]} was given"
        if journal.classes[topic] == "fsync":
            journal.records[topic][first] = "1000000"
        journal.highest[topic] = first


# The walk


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``index`` 0: nothing fails."""

    index: int = 0
    goes_on: bool = False
    stop: bool = False

    def __str__(self) -> str:
        flags = "".join(
            f" --{name}" for name in ("goes-on", "stop") if getattr(self, name.replace("-", "_"))
        )
        return f"--from {self.index} --to {self.index}{flags}"


def run_case(case: Case, folder: Path) -> tuple[list[str], list[str]]:
    """What is wrong, and the calls that were made."""
    path, journal, wrong = folder / "data", Journal(), []
    with pytest.MonkeyPatch.context() as patch, FaultDisk(path, folder / "graveyard") as disk:
        patch.setattr(appends, "STREAMED_MIN_BYTES", STREAMED_MIN_BYTES)
        patch.setattr(wal_writer, "SYNC_BYTES", SYNC_BYTES)
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
    asked = parser.parse_args()
    quiet()
    modes = [(goes_on, stop) for goes_on in (False, True) for stop in (False, True)]
    if asked.goes_on or asked.stop or asked.first == asked.last:
        modes = [(asked.goes_on, asked.stop)]
    runs = failed = 0
    for goes_on, stop in modes:
        wrong, calls = in_folder(Case(stop=stop))
        assert not wrong, "without a fault:\n" + "\n".join(wrong)
        last = asked.last or len(calls)
        print(f"goes on {goes_on}, orderly stop {stop}: {len(calls)} calls", flush=True)
        for index in range(asked.first, last + 1, asked.every):
            wrong, _ = in_folder(Case(index, goes_on, stop))
            runs += 1
            failed += bool(wrong)
            for line in wrong:
                print(line, flush=True)
    print(f"{runs} runs, {failed} with something wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
