"""Tests of copies while their log is sealed: frames refer only to payloads in their own log file,
and no damaged payload is sealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.damage_support import flip, walk
from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    check_restart,
    damage_newest_checkpoint,
    ended,
    fill,
    findings,
    free_all,
    sealed,
    seen,
)
from tests.support.forwarding import RECORDS, forward, forward_named
from tests.support.log import append_streamed
from topics.formats.disk.copies import Run
from topics.formats.disk.frames import FRAME_HEADER_BYTES

DESTS = ("d1", "d2", "d3")
FILE_BYTES = 4096 + 8192


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Sealer]:
    """Return a shard with three topics for copies and small log files."""
    with ended(Sealer(tmp_path / "data", file_bytes=FILE_BYTES)) as client:
        for name in DESTS:
            client.put(name)
        yield client


def last_write(client: Sealer, name: str) -> int:
    """Return the LSN of the newest frame of a topic."""
    index = client.engine.topic(name).index
    return index.entry(len(index) - 1)[2]


def named_append(client: Sealer, size: int = 100) -> Run:
    """Append a record to the source and return a run that refers to it."""
    client.append("src", "x" * size)
    return Run(last_write(client, "src"), 0, 0, 1)


def test_copies_are_read_sealed_and_read_again(client: Sealer) -> None:
    forward(client, DESTS)
    forward_named(client, DESTS[1:], named_append(client), named_append(client))
    before = seen(client)
    for name in DESTS:
        assert [record["data"] for record in client.shown(name)][:3] == [
            record["data"] for record in RECORDS
        ]
    fill(client, "other", rounds=80)
    client.seal()
    for name in DESTS:
        assert sealed(client, name)
        assert seen(client)[name] == before[name]
    assert findings(client.path) == []


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_copies_are_recovered_after_their_source_is_deleted(client: Sealer, end: str) -> None:
    forward(client, DESTS)
    forward_named(client, DESTS, named_append(client))
    client.delete("src")
    before = seen(client)
    getattr(client, end)()
    check_restart(client, before)


def test_a_start_from_the_older_checkpoint_finds_all_copies(client: Sealer) -> None:
    forward_named(client, DESTS, named_append(client))
    forward(client, DESTS)
    fill(client, "other", rounds=80)
    before = seen(client)
    client.checkpoint()
    client.checkpoint()
    assert seen(client) == before
    client.kill()
    damage_newest_checkpoint(client.path)
    check_restart(client, before)


def test_a_log_file_with_payloads_is_freed_like_any_other(client: Sealer) -> None:
    """Copies in a file that is not sealed need no earlier file."""
    run = named_append(client)
    forward_named(client, DESTS, run)
    fill(client, "other", rounds=80)
    forward(client, DESTS)
    client.checkpoint()
    client.checkpoint()
    assert client.wal.oldest_lsn > run.lsn
    before = seen(client)
    client.kill()
    check_restart(client, before)


def test_a_blob_is_kept_while_copies_of_its_records_need_it(client: Sealer) -> None:
    """The topic of the blob is deleted, and a start removes blobs that no record uses."""
    client.append("src", 0)
    blob = append_streamed(client, "src", *["x" * 300] * 5)
    forward_named(client, DESTS, Run(last_write(client, "src"), 0, 0, 5))
    before = client.shown("d1")
    assert len(before) == 5
    client.delete("src")
    assert blob.exists()
    assert client.shown("d1") == before
    client.kill()
    with ended(client.again()) as again:
        assert again.shown("d1") == before
        fill(again, "more", rounds=80)
        free_all(again)
        assert sealed(again, "d1")
        assert not blob.exists()
        assert again.shown("d1") == before


# Damage


def test_copies_of_a_damaged_payload_are_lost_and_never_sealed(
    client: Sealer, stepping: list[Any]
) -> None:
    """The lost copies are those in the frame with the payload and in the frame that refers to it.
    Copies in other frames remain.
    """
    forward(client, DESTS)
    damaged_lsn = forward(client, DESTS)
    forward_named(client, DESTS, Run(damaged_lsn, 0, 0, 3))
    forward(client, DESTS)
    file = client.wal.file(damaged_lsn)
    offset = file.offset(damaged_lsn)
    fill(client, "other", rounds=80)
    flip(file.path, offset + FRAME_HEADER_BYTES + 150)
    free_all(client)
    events = [event for event in stepping if event["event"] == "data damaged"]
    assert [(event["path"], event["offset"]) for event in events] == [(str(file.path), offset)]
    for name in DESTS:
        for _ in range(2):
            seqs, gaps = walk(client, client.engine.topic(name))
            assert gaps == [(4, 9)]
            assert seqs == [1, 2, 3, 10, 11, 12]
        assert client.engine.topic(name).count == 6
    client.kill()
    with ended(client.again()) as again:
        for name in DESTS:
            assert walk(again, again.engine.topic(name)) == ([1, 2, 3, 10, 11, 12], [(4, 9)])


def test_copies_of_a_damaged_append_are_lost_with_it(client: Sealer) -> None:
    run = named_append(client, size=400)
    forward_named(client, DESTS, run)
    forward(client, DESTS)
    file = client.wal.file(run.lsn)
    fill(client, "other", rounds=80)
    flip(file.path, file.offset(run.lsn) + FRAME_HEADER_BYTES + 60)
    free_all(client)
    for name in DESTS:
        seqs, gaps = walk(client, client.engine.topic(name))
        assert (seqs, gaps) == ([2, 3, 4], [(1, 1)])


def test_copies_of_a_damaged_blob_are_lost_with_it(client: Sealer) -> None:
    client.append("src", 0)
    blob = append_streamed(client, "src", *["x" * 300] * 5)
    forward_named(client, DESTS, Run(last_write(client, "src"), 0, 0, 5))
    forward(client, DESTS)
    fill(client, "other", rounds=80)
    flip(blob, 500)
    free_all(client)
    for name in DESTS:
        seqs, gaps = walk(client, client.engine.topic(name))
        assert (seqs, gaps) == ([6, 7, 8], [(1, 5)])
