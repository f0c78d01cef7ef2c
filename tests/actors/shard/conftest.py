"""Fixtures: harnesses for the tests of a shard's services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.support.feeds import Front, OnDisk
from tests.support.queue_harness import QueueHarness
from tests.support.shard import ShardHarness
from tests.support.streamed import LONG
from topics.actors.shard import appends, streamed_appends
from topics.formats.api import append_slices


@pytest.fixture
def harness(tmp_path: Path, nursery: trio.Nursery) -> ShardHarness:
    """One session of a front with a shard."""
    return ShardHarness(tmp_path, nursery)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream bodies of more than 4,000 bytes, decode them by 500 and write them by 1,000 bytes."""
    monkeypatch.setattr(appends, "STREAMED_MIN_BYTES", LONG)
    monkeypatch.setattr(streamed_appends, "RUN_BYTES", 1000)
    monkeypatch.setattr(append_slices, "SLICE_BYTES", 500)


@pytest.fixture
def front(tmp_path: Path, nursery: trio.Nursery) -> Front:
    """A session that opens feeds."""
    return Front(tmp_path, nursery)


@pytest.fixture
def workers(tmp_path: Path, nursery: trio.Nursery) -> QueueHarness:
    """A session whose clients work on queues."""
    return QueueHarness(tmp_path, nursery)


@pytest.fixture
async def disk(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[OnDisk]:
    """A session that opens feeds of a shard on a real disk."""
    front = OnDisk(tmp_path, nursery)
    yield front
    if front.log.writer._thread.is_alive():
        await front.end()
