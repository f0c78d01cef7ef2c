"""The workload of `fault_walk`, and the responses of the shard to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.campaigns.fault_disk import FaultDisk
from tests.support.shard import ShardHarness
from topics.actors.link.board import ShardState
from topics.actors.shard.context import clock
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import ROUTER_PUT, RouterParams
from topics.storage.data_dir import DataDirectory
from topics.storage.recovery.shard_recovery import recover

FILE_BYTES = 16 << 10
RESPONSE_S = 20.0
COPY_AFTER_FAULT_S = 0.1  # after a fault, forwarding may have stopped
# Dests of routers with their classes, each with its source.
DESTS = {"rf": ("fsync", "f"), "rd": ("disk", "d"), "rr": ("disk", "rf"), "re": ("fsync", "e")}


CLASSES = {"f": "fsync", "d": "disk", "m": "memory", "e": "ephemeral", "g": "fsync", "c": "disk"}


@dataclass(slots=True)
class Journal:
    """The responses of the shard."""

    # By topic: acknowledged and not deleted.
    records: dict[str, dict[int, str]] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)  # the highest assigned seq
    refused: set[str] = field(default_factory=set)
    deleted_topics: set[str] = field(default_factory=set)  # acknowledged deletes of topics
    deleted: dict[str, set[str]] = field(default_factory=dict)
    routed: set[str] = field(default_factory=set)  # dests of routers
    read_only: bool = False
    answered: int = 0


class WorkloadRun:
    """One run of the workload on one shard."""

    def __init__(self, path: Path, disk: FaultDisk, journal: Journal) -> None:
        self.path, self.disk, self.journal = path, disk, journal
        self.harness: ShardHarness
        self._number = 0

    async def run(self, *, stop: bool) -> None:
        """Run the complete workload, then an orderly stop or a kill."""
        DataDirectory(self.path, shards=1).close()
        shard = recover(
            self.path, 0, 1, clock(), wal_file_bytes=FILE_BYTES, wal_sync_ms=60_000, boot="b"
        )
        try:
            async with trio.open_nursery() as nursery:
                self.harness = ShardHarness(self.path, nursery, shard=shard)
                nursery.start_soon(self.harness.loop.follow_log)
                self.harness.loop.context.disk_space.show()
                await self._work()
                await self._find_space()
                merged = self.harness.loop.services.sealing.rewriting.merged
                assert merged or self.disk.failed, "no segments were merged"
                self.journal.read_only = self.harness.loop.context.disk_space.broken is not None
                nursery.cancel_scope.cancel()
            if stop:
                shard.wal.stop()
                if not self.journal.read_only:
                    self.harness.loop.services.sealing.write_last()
        except OSError:
            if not stop:
                raise
        finally:
            self.disk.dead = True
            shard.wal.writer.stop()
            for file in shard.wal._files:
                file.close()

    async def _work(self) -> None:
        for topic, durability in CLASSES.items():
            await self._put(topic, durability=durability)
        for dest, (durability, source) in DESTS.items():
            await self._put(dest, durability=durability)
            await self._route(source, dest)
        await self._appends("fdmegc", 3)
        await self._wait_for_copies()
        await self._burst("d", 4)
        await self._append("d", 3, 4_000)  # streamed
        await self._append("f", 3, 4_000)
        await self._wait_for_copies()
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
        await self._wait_for_copies()
        await self._round()
        await self._checkpoint()
        await self._checkpoint()
        await self._appends("fdc", 3)
        await self._wait_for_copies()
        await self._put("g", durability="fsync")
        await self._appends("g", 1)

    # Steps

    async def _put(self, topic: str, **config: Any) -> None:
        if await self._response(self.harness.put(topic, **config)) is not None:
            self.journal.classes[topic] = config["durability"]
            self.journal.records.setdefault(topic, {})
            self.journal.deleted_topics.discard(topic)

    async def _route(self, source: str, dest: str) -> None:
        params = RouterParams(dest, None, 0)
        body = json_bytes({"source": source, "dest": dest, "create_dest": False})
        if await self._response(self.harness.request(ROUTER_PUT, params, body)) is not None:
            self.journal.routed.add(dest)

    async def _wait_for_copies(self) -> None:
        """Wait until the copies have arrived, unless a fault prevents them, and read them."""
        for dest in sorted(self.journal.routed):
            source = self.harness.engine.topics.get(DESTS[dest][1])
            topic = self.harness.engine.topics.get(dest)
            if source is None or topic is None or self.harness.log.failed is not None:
                continue
            with trio.move_on_after(RESPONSE_S if self.disk.failed is None else COPY_AFTER_FAULT_S):
                while not self._has_arrived(dest):  # noqa: ASYNC110 - there is no event
                    await trio.sleep(0.0005)
            assert self.disk.failed or self._has_arrived(dest), f"{dest} lags"
            await self._read(dest)

    def _has_arrived(self, dest: str) -> bool:
        topic = self.harness.engine.topics[dest]
        head = self.harness.engine.topics[DESTS[dest][1]].head_seq
        return any(cursor >= head for cursor, _ in (topic.derivations or {}).values())

    async def _read(self, dest: str) -> None:
        page = await self._response(self.harness.diff(dest, limit=1000, wait_ms=0))
        for record in page["records"] if page is not None else ():
            seq, number = record["$seq"], record["data"].split()[0]
            before = self.journal.records[dest].setdefault(seq, number)
            assert before == number, f"{dest} {seq} was {before} and is {number}"
            self.journal.highest[dest] = seq

    async def _appends(self, topics: str, rounds: int) -> None:
        for _ in range(rounds):
            for topic in topics:
                await self._append(topic, 2, 400)

    def _records(self, count: int, size: int) -> list[dict[str, Any]]:
        made = []
        for _ in range(count):
            self._number += 1
            tag = "odd" if self._number % 2 else "even"
            made.append({"data": f"{self._number} {'x' * size}", "tag": tag})
        return made

    async def _append(self, topic: str, count: int, size: int) -> None:
        records = self._records(count, size)
        body = msgspec.json.encode({"records": records, "create": False})
        self._note(topic, records, await self._response(self.harness.append_raw(topic, body)))

    async def _burst(self, topic: str, count: int) -> None:
        parts = [self._records(1, 300) for _ in range(count)]
        bodies = ({"records": part, "create": False} for part in parts)
        number = self.harness.append_many(topic, *bodies)
        self.harness.loop.end_iteration()
        with trio.fail_after(RESPONSE_S):
            while not self.harness.wire.sent:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.0002)
        try:
            ((_, answers),) = self.harness.batches()
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

    async def _delete_records(self, topic: str, **selection: Any) -> None:
        held = self.journal.records.get(topic, {})
        if await self._response(self.harness.delete_records(topic, **selection)) is None:
            return
        for seq in list(held):
            if seq < selection.get("before_seq", 0) or (
                "match" in selection and int(held[seq]) % 2 == 0
            ):
                self.journal.deleted.setdefault(topic, set()).add(held.pop(seq))

    async def _delete(self, topic: str) -> None:
        if await self._response(self.harness.delete(topic)) is not None:
            self.journal.records.pop(topic, None)
            self.journal.highest.pop(topic, None)
            self.journal.deleted_topics.add(topic)

    async def _response(self, number: int) -> dict[str, Any] | None:
        """Return the response, or None if it is a refusal."""
        self.harness.loop.end_iteration()
        with trio.fail_after(RESPONSE_S):
            while not (found := self.harness.bodies()):  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.0002)
        ((answered, body),) = found
        assert answered == number, "the response belongs to another request"
        self.journal.answered += 1
        return None if "code" in body else body

    async def _round(self) -> None:
        await self._sealing(self.harness.loop.services.sealing._round)

    async def _checkpoint(self) -> None:
        await self._sealing(self.harness.loop.services.sealing.checkpoint)

    async def _sealing(self, what: Any) -> None:
        if self.harness.log.failed is None:
            try:
                await what()
            except OSError:
                return

    async def _find_space(self) -> None:
        """Check that a shard that had no free space continues without a restart when the disk works
        again.
        """
        self.disk.stop_failing()
        disk_space = self.harness.loop.context.disk_space
        disk_space.show()
        if self.harness.cells.state == ShardState.NO_ROOM:
            assert await disk_space.find_space(), "no space was found"
            if "f" in self.journal.records:
                await self._append("f", 1, 100)
                refused = str(self._number) in self.journal.refused
                assert not refused, "the shard refuses a write although space is free"
