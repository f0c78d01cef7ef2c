"""Copies by reference while their log is sealed: what they name stays as long as they need it, and
no damaged payload is sealed with them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.damage_support import walk
from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    comes_back,
    ended,
    files,
    fill,
    findings,
    free_all,
    sealed,
    seen,
    spoil,
)
from tests.support.forwarding import RECORDS, forward, write_payload
from tests.support.linked import ShardLog
from tests.support.log import append_streamed
from topics.formats.disk.frames import FRAME_HEADER_BYTES
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import DAMAGED, Damaged


@pytest.fixture
def source(client: Sealer) -> Iterator[ShardLog]:
    """The log of shard 2 in the same directory."""
    log = ShardLog(client.path, 2)
    yield log
    log.stop()


def links(client: Sealer) -> list[str]:
    return sorted(path.name for path in client.wal.linked.folder.iterdir())


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_copies_are_read_sealed_and_read_again(client: Sealer, source: ShardLog) -> None:
    client.put("dest")
    lsn = write_payload(source, RECORDS)
    forward(client, "dest", RECORDS, (2, lsn), (2, lsn))
    before = seen(client)
    assert [record["data"] for record in client.shown("dest")] == [
        record["data"] for record in RECORDS * 2
    ]
    fill(client, "other", rounds=8)
    client.seal()
    assert sealed(client, "dest")
    assert seen(client)["dest"] == before["dest"]
    assert findings(client.path) == []


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_copies_come_back_though_the_source_has_given_up_its_log(
    client: Sealer, source: ShardLog, end: str
) -> None:
    client.put("dest")
    lsn = write_payload(source, RECORDS)
    forward(client, "dest", RECORDS, (2, lsn))
    before = seen(client)
    for _ in range(4):
        source.give_up(source.next_file())
    getattr(client, end)()
    comes_back(client, before)


def test_a_link_goes_two_checkpoints_after_its_copies_are_sealed(
    client: Sealer, source: ShardLog
) -> None:
    client.put("dest")
    forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
    fill(client, "other", rounds=3)
    client.seal()
    assert sealed(client, "dest")
    assert len(links(client)) == 1
    free_all(client)
    assert links(client) == []
    before = seen(client)
    client.kill()
    comes_back(client, before)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_links_that_a_start_does_not_know_go_with_the_log_of_that_time(
    client: Sealer, source: ShardLog, end: str
) -> None:
    client.put("dest")
    forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
    fill(client, "other", rounds=3)
    client.seal()
    before = seen(client)
    getattr(client, end)()
    with ended(client.again()) as again:
        assert len(links(again)) == 1
        free_all(again)
        assert links(again) == []
        assert seen(again) == before


def test_the_older_checkpoint_finds_what_it_needs(client: Sealer, source: ShardLog) -> None:
    client.put("dest")
    client.append("src", "first")
    own = client.engine.topic("src").index.entry(0)[2]
    forward(client, "dest", [{"data": "first"}], (0, own))
    forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
    fill(client, "other", rounds=8)
    before = seen(client)
    client.checkpoint()
    client.checkpoint()
    assert seen(client) == before
    client.kill()
    spoil(client.path)
    comes_back(client, before)


def test_an_own_log_file_is_linked_while_copies_need_it(client: Sealer) -> None:
    client.put("dest")
    client.append("src", {"n": "x" * 100})
    own = client.engine.topic("src").index.entry(0)[2]
    link = f"00-{client.wal.base_of(own):016x}.wal"
    fill(client, "other", rounds=8)
    forward(client, "dest", [{"data": {"n": "x" * 100}}], (0, own))
    before = seen(client)["dest"]
    client.checkpoint()
    client.checkpoint()
    assert client.wal.oldest_lsn > own
    assert links(client) == [link]
    assert seen(client)["dest"] == before
    before = seen(client)
    client.kill()
    with ended(client.again()) as again:
        assert seen(again) == before
        fill(again, "more", rounds=8)
        free_all(again)
        assert sealed(again, "dest")
        assert links(again) == []
        assert seen(again)["dest"] == before["dest"]


def test_without_hard_links_the_log_keeps_the_files_that_copies_need(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("src", "x" * 100)
    own = client.engine.topic("src").index.entry(0)[2]
    fill(client, "other", rounds=8)
    client.put("dest")
    forward(client, "dest", [{"data": "x" * 100}], (0, own))

    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", fail)
    before = seen(client)
    client.checkpoint()
    client.checkpoint()
    assert client.wal.oldest_lsn == 0
    assert seen(client) == before
    fill(client, "other", rounds=8)
    client.checkpoint()
    client.checkpoint()
    assert client.wal.oldest_lsn > own
    assert links(client) == []


def test_a_blob_stays_for_the_copies_of_its_records(client: Sealer) -> None:
    """Its topic is deleted, and a start sweeps what belongs to none."""
    client.append("src", 0)
    records = [{"data": "x" * 300}] * 5
    blob = append_streamed(client, "src", *["x" * 300] * 5)
    own = client.engine.topic("src").index.entry(1)[2]
    client.put("dest")
    forward(client, "dest", records, (0, own))
    before = client.shown("dest")
    client.delete("src")
    assert not blob.exists()
    assert client.shown("dest") == before
    client.kill()
    with ended(client.again()) as again:
        assert again.shown("dest") == before
        fill(again, "more", rounds=8)
        free_all(again)
        assert sealed(again, "dest")
        assert links(again) == []
        assert again.shown("dest") == before


# Damage


def test_copies_of_a_damaged_payload_are_lost_and_never_sealed(
    client: Sealer, source: ShardLog, stepping: list[Any]
) -> None:
    client.put("dest")
    forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
    hurt = write_payload(source, RECORDS)
    forward(client, "dest", RECORDS, (2, hurt))
    forward(client, "dest", RECORDS, (2, hurt), (2, write_payload(source, RECORDS)))
    forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
    fill(client, "other", rounds=8)
    link = client.wal.linked.folder / f"02-{0:016x}.wal"
    flip(link, FILE_HEADER_BYTES + hurt + FRAME_HEADER_BYTES + 60)
    free_all(client)
    topic = client.engine.topic("dest")
    told = [event for event in stepping if event["event"] == "data damaged"]
    assert [(event["path"], event["offset"]) for event in told] == [
        (str(link), FILE_HEADER_BYTES + hurt)
    ]
    for each in (client, client):
        seqs, gaps = walk(each, each.engine.topic("dest"))
        assert gaps == [(4, 12)]
        assert seqs == [1, 2, 3, 13, 14, 15]
    assert topic.count == 6
    assert links(client) == [link.name + DAMAGED], "it is kept for people"
    client.kill()
    with ended(client.again()) as again:
        assert walk(again, again.engine.topic("dest")) == ([1, 2, 3, 13, 14, 15], [(4, 12)])


@pytest.mark.parametrize("hurt", ["damaged", "cut", "missing"])
def test_a_start_is_refused_where_a_payload_is_not_as_it_was(
    client: Sealer, source: ShardLog, hurt: str
) -> None:
    client.put("dest")
    lsn = write_payload(source, RECORDS)
    forward(client, "dest", RECORDS, (2, lsn))
    client.kill()
    link = client.wal.linked.folder / f"02-{0:016x}.wal"
    if hurt == "damaged":
        flip(link, FILE_HEADER_BYTES + lsn + FRAME_HEADER_BYTES + 60)
    elif hurt == "cut":
        os.truncate(link, link.stat().st_size - 1)
    else:
        link.unlink()
    with pytest.raises(Damaged) as damage:
        client.again()
    assert damage.value.path == link
    assert files(client.path, "wal")
