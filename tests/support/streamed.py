"""Streamed appends whose writes a test holds back."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import trio

from tests.support.shard import ShardHarness
from topics.actors.shard.streamed_appends import MemorySink
from topics.storage.wal import blobs
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


LONG = 4000


PADDING = ["x" * 100] * 60  # More than LONG


async def pass_on() -> None:
    """Let other tasks and threads run. A tight polling loop would keep the interpreter from other
    threads.
    """
    time.sleep(0.0005)  # noqa: ASYNC251 - with any clock of trio
    await trio.lowlevel.checkpoint()


class Held:
    """Hold back every write to a blob or to memory until opened. The writes wait in threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = 0
        self.after: dict[int, OSError] = {}  # The error to raise at the n-th write
        self._opened = False
        for where, name in ((blobs, "write_all"), (MemorySink, "write")):
            monkeypatch.setattr(where, name, self._holding(getattr(where, name)))

    def _holding(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(*args: Any) -> None:
            self.reached += 1
            if self.reached in self.after:
                raise self.after[self.reached]
            while not self._opened:
                trio.from_thread.run(pass_on)
            real(*args)

        return write

    def open(self) -> None:
        self._opened = True


def body(datas: Iterable[Any], **fields: Any) -> bytes:
    return json.dumps(
        {"records": [{"data": data} for data in datas], **fields}, ensure_ascii=False
    ).encode()


async def until(harness: ShardHarness, *numbers: int) -> dict[int, dict[str, Any]]:
    """Sync the log and run the tasks until these requests have replies. Return all replies in
    order of time.
    """
    found: dict[int, dict[str, Any]] = {}
    with trio.fail_after(20):
        while not set(numbers) <= set(found):
            harness.synced()
            found |= dict(harness.bodies())
            await pass_on()
    return found


async def held_up(harness: ShardHarness, held: Held, writes: int = 1) -> None:
    """Wait until this number of blobs waits in their first write."""
    with trio.fail_after(20):
        while held.reached < writes:
            harness.synced()
            await pass_on()


def files(harness: ShardHarness) -> list[str]:
    return sorted(path.name for path in harness.log.blobs.folder.iterdir())


def stored(harness: ShardHarness, topic: str) -> list[dict[str, Any]]:
    harness.diff(topic, limit=1000, max_batch_bytes=8 << 20, include_tags=True)
    ((_, page),) = harness.bodies()
    records: list[dict[str, Any]] = page["records"]
    return records


def datas(harness: ShardHarness, topic: str) -> list[Any]:
    return [record["data"] for record in stored(harness, topic)]
