"""Tests of damage to sealed records of a running shard: it loses the smallest checked block, and
readers receive exactly the remaining records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.damage_support import flip, lost, walk
from tests.actors.shard.sealing.sealing_support import Sealer, ended
from topics.formats.disk.segment import CHUNK_BYTES
from topics.storage.segments.segment_file import Segment

pytestmark = pytest.mark.slow

FILE_BYTES = 256 << 10


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Sealer]:
    with ended(Sealer(tmp_path / "data", file_bytes=FILE_BYTES)) as client:
        yield client


def fill(client: Sealer, count: int = 400, size: int = 4000, topic: str = "a") -> None:
    for number in range(count):
        rng = random.Random(number)
        record = {
            "data": "x" * rng.randrange(size),
            "node": ["me", "you"][number % 2],
            "tag": f"t{number % 3}",
        }
        client.append(topic, records=[record])
        client.later(10)
    client.seal()
    client.seal()


def extents(client: Sealer) -> list[tuple[Segment, Any]]:
    return [
        (segment, entry)
        for segment in client.shard.segments.segments.values()
        for entry in segment.entries()
    ]


def damage_at(client: Sealer, segment: Segment, offset: int) -> None:
    flip(segment.path, offset)
    segment.checked[:] = bytes(
        len(segment.checked)
    )  # as after a start, because written extents count as checked
    client.shard.segments.maps.close()


def damaged_seqs(client: Sealer, segment: Segment, extent: int, chunk: int) -> set[int]:
    """Damage a chunk of an extent. Return the seqs of the records that overlap it."""
    entry = [*segment.entries()][extent]
    view = client.shard.segments.records(
        next(
            locator
            for locator, found in client.shard.segments.entries(segment.number)
            if found == entry
        )
    )
    ends = [0, *view.ends]
    begin, end = chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, entry.blob_bytes)
    damage_at(client, segment, entry.offset + (begin + end) // 2)
    return {
        entry.first_seq + at
        for at in range(entry.record_count)
        if ends[at] < end and ends[at + 1] > begin
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_receives_every_intact_record_and_a_report_of_the_others(
    client: Sealer, seed: int
) -> None:
    rng = random.Random(seed)
    fill(client)
    topic = client.engine.topic("a")
    deleted = {seq for seq in range(1, 401) if rng.random() < 0.2} if seed % 3 else set()
    if deleted:
        client.delete_records("a", match=["tag", "Eq", "t1"])
        deleted = {seq for seq in range(1, 401) if (seq - 1) % 3 == 1}
    damaged: set[int] = set()
    for segment, entry in extents(client):
        chunks = -(-entry.blob_bytes // CHUNK_BYTES)
        for chunk in rng.sample(range(chunks), rng.randrange(4)):
            damaged |= damaged_seqs(client, segment, 0, chunk)
    for _ in range(6):
        mine = rng.random() < 0.5
        view = {
            "limit": rng.choice([1, 7, 1000]),
            "max_batch_bytes": rng.choice([1, 50_000, 1 << 20]),
            "include_tags": rng.random() < 0.5,
            "include_data": rng.random() < 0.7,
            "nodes": frozenset({"me"}) if mine else frozenset(),
        }
        seqs, gaps = walk(client, topic, **view)
        wanted = {seq for seq in range(1, 401) if seq not in deleted and not (mine and seq % 2)}
        assert seqs == sorted(wanted - damaged), view
        assert lost(gaps) & wanted == wanted & damaged
        assert all({first, last} <= wanted & damaged for first, last in gaps), (
            "the first and last seq of a gap are lost"
        )


def test_damage_that_a_filter_drops_anyway_is_not_reported(client: Sealer) -> None:
    for number in range(400):
        client.append("a", "x" * 2000, node="me" if 20 <= number < 80 else "you")
    client.seal()
    client.seal()
    damaged = damaged_seqs(client, extents(client)[0][0], 0, 1)
    assert damaged < set(range(21, 81))
    topic = client.engine.topic("a")
    seqs, gaps = walk(client, topic, nodes=frozenset({"me"}))
    assert (seqs, gaps) == ([*range(1, 21), *range(81, 401)], [])
    seqs, gaps = walk(client, topic, nodes=frozenset({"you"}))
    assert (seqs, gaps) == (sorted({*range(21, 81)} - damaged), [(min(damaged), max(damaged))])


def test_damaged_tables_cost_the_live_records_of_their_extent_as_one_gap(
    client: Sealer, stepping: list[Any]
) -> None:
    fill(client)
    client.delete_records("a", before_seq=5)
    (segment, entry), *_ = extents(client)
    assert entry.first_seq == 1
    damage_at(client, segment, entry.tables_at + 5)
    seqs, gaps = walk(client, client.engine.topic("a"))
    assert gaps == [(5, entry.record_count)]
    assert seqs == [*range(entry.record_count + 1, 401)]
    events = [log for log in stepping if log["event"] == "data damaged"]
    assert [(log["path"], log["offset"]) for log in events] == [
        (str(segment.path), entry.tables_at)
    ], "logged once, regardless of the number of readers"


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_segment_file_removed_under_a_running_shard_is_damage(client: Sealer, how: str) -> None:
    fill(client)
    (segment, entry), *_ = extents(client)
    client.shard.segments.maps.close()
    segment.path.unlink() if how == "missing" else segment.path.write_bytes(
        segment.path.read_bytes()[:5000]
    )
    seqs, gaps = walk(client, client.engine.topic("a"))
    assert gaps == [(1, entry.record_count)]
    assert seqs == [*range(entry.record_count + 1, 401)]


def test_a_segment_that_cannot_be_opened_for_lack_of_descriptors_is_not_damaged(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    client.shard.segments.maps.close()

    def fail(_path: Path) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.maps.MappedFile.of", fail)
        with pytest.raises(OSError, match="Too many"):
            walk(client, client.engine.topic("a"))
    assert walk(client, client.engine.topic("a"))[1] == []


@pytest.mark.parametrize("part", ["tables", "records"])
def test_caps_age_and_deletes_work_next_to_damaged_records_and_across_them(
    client: Sealer, part: str
) -> None:
    fill(client)
    topic = client.engine.topic("a")
    (segment, entry), *_ = extents(client)
    end = entry.record_count
    if part == "tables":
        damage_at(client, segment, entry.tables_at + 5)
    else:
        for chunk in range(-(-entry.blob_bytes // CHUNK_BYTES)):
            damage_at(client, segment, entry.offset + chunk * CHUNK_BYTES)
    count, size = topic.count, topic.bytes
    assert count == 400
    assert client.delete_records("a", before_seq=11) == 10
    assert (topic.count, topic.start_seq) == (390, 11)
    assert 0 < topic.bytes < size
    assert client.delete_records("a", match=["tag", "Glob", "t*"]) >= 400 - end, (
        "records with an unreadable tag are kept"
    )
    client.put("a", cap_records=5)
    for number in range(30):
        client.append("a", number)
    assert (topic.count, topic.start_seq) == (5, 426)
    assert [record["$seq"] for record in client.shown("a")] == [*range(426, 431)]
    client.put("a", cap_records=0, cap_bytes=200)
    client.append("a", 1)
    assert topic.bytes <= 200


@pytest.mark.parametrize("part", ["tables", "records"])
def test_damaged_records_finally_expire_by_age(client: Sealer, part: str) -> None:
    fill(client)
    topic = client.engine.topic("a")
    (segment, entry), *_ = extents(client)
    if part == "tables":
        damage_at(client, segment, entry.tables_at + 5)
    else:
        damaged_seqs(client, segment, 0, 1)
    client.put("a", ttl_ms=3_000)
    client.engine.expire(topic, client.now)
    # One record was appended every 10 ms. Records without a readable time are removed only when
    # the records after them are too old.
    assert topic.start_seq == (1 if part == "tables" else 400 - 299)
    for _ in range(10):
        client.later(500)
        client.append("a", 1)
        client.engine.expire(topic, client.now)
    assert topic.start_seq > 400
