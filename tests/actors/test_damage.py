"""Damage under a running shard: it costs the smallest checked block, readers are told of just that,
and everything else goes on.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from tests.actors.sealing_support import Sealer, by_hand, files, findings, no_syncs
from tests.actors.test_sealing import append_streamed
from tests.storage.log_support import failing
from topics.actors.link.board import Board
from topics.actors.link.heads import HeadReader, HeadWriter
from topics.engine.reading import Page, read
from topics.engine.topic import Topic
from topics.formats.api.requests import Diff
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, scan_frames
from topics.formats.disk.segment import CHUNK_BYTES
from topics.formats.disk.wal import FILE_HEADER_BYTES, decode_file_header
from topics.storage.disk import Damaged
from topics.storage.segments.store import Segment

FILE_BYTES = 256 << 10


@pytest.fixture(autouse=True)
def stepping(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    by_hand(monkeypatch)
    no_syncs(monkeypatch)
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Sealer]:
    client = Sealer(tmp_path / "data", file_bytes=FILE_BYTES)
    yield client
    client.give_up()
    if client.wal.writer._thread.is_alive():
        client.kill()


def fill(client: Sealer, count: int = 400, size: int = 4000, topic: str = "a") -> None:
    for number in range(count):
        dice = random.Random(number)
        record = {
            "data": "x" * dice.randrange(size),
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


def hurt(client: Sealer, segment: Segment, offset: int) -> None:
    with segment.path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    segment.checked[:] = bytes(
        len(segment.checked)
    )  # as after a start: these were found whole when they were written
    client.shard.segments.close()


def hurt_seqs(client: Sealer, segment: Segment, extent: int, chunk: int) -> set[int]:
    """Damage a chunk of an extent; the seqs of the records that touch it."""
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
    hurt(client, segment, entry.offset + (begin + end) // 2)
    return {
        entry.first_seq + at
        for at in range(entry.record_count)
        if ends[at] < end and ends[at + 1] > begin
    }


def walk(client: Sealer, topic: Topic, **asked: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """What a reader gets who goes on until it has come to the head: seqs, and gaps told as damaged."""
    seqs, gaps, cursor = [], [], 0
    while True:
        page: Page = read(topic, Diff(from_seq=cursor, **asked), client.commits.store)
        shown = [
            record["$seq"]
            for record in msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.pieces)))
        ]
        if page.tombstone is not None:
            told = page.tombstone
            assert told.reason == "damaged"
            assert cursor < told.gap_from <= told.gap_to <= page.next_from_seq
            assert all(seq > told.gap_to for seq in shown), "a gap comes before what is behind it"
            gaps.append((told.gap_from, told.gap_to))
        seqs += shown
        assert page.unfinished or page.next_from_seq > cursor or page.caught_up, (
            "no reader stands still"
        )
        cursor = page.next_from_seq
        if page.caught_up:
            return seqs, gaps


def lost(gaps: list[tuple[int, int]]) -> set[int]:
    return {seq for first, last in gaps for seq in range(first, last + 1)}


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_gets_every_record_that_is_whole_and_is_told_of_just_the_others(
    client: Sealer, seed: int
) -> None:
    dice = random.Random(seed)
    fill(client)
    topic = client.engine.topic("a")
    deleted = {seq for seq in range(1, 401) if dice.random() < 0.2} if seed % 3 else set()
    if deleted:
        client.delete_records("a", match=["tag", "Eq", "t1"])
        deleted = {seq for seq in range(1, 401) if (seq - 1) % 3 == 1}
    damaged: set[int] = set()
    for segment, entry in extents(client):
        chunks = -(-entry.blob_bytes // CHUNK_BYTES)
        for chunk in dice.sample(range(chunks), dice.randrange(4)):
            damaged |= hurt_seqs(client, segment, 0, chunk)
    for _ in range(6):
        mine = dice.random() < 0.5
        asked = {
            "limit": dice.choice([1, 7, 1000]), "max_batch_bytes": dice.choice([1, 50_000, 1 << 20]), "include_tags": dice.random() < 0.5,
            "include_data": dice.random() < 0.7, "nodes": frozenset({"me"}) if mine else frozenset(),
        }  # fmt: skip
        seqs, gaps = walk(client, topic, **asked)
        wanted = {seq for seq in range(1, 401) if seq not in deleted and not (mine and seq % 2)}
        assert seqs == sorted(wanted - damaged), asked
        assert lost(gaps) & wanted == wanted & damaged
        assert all({first, last} <= wanted & damaged for first, last in gaps), (
            "gaps begin and end with what is lost"
        )


def test_a_reader_whose_filter_drops_all_that_is_damaged_is_not_disturbed(client: Sealer) -> None:
    for number in range(400):
        client.append("a", "x" * 2000, node="me" if 20 <= number < 80 else "you")
    client.seal()
    client.seal()
    damaged = hurt_seqs(client, extents(client)[0][0], 0, 1)
    assert damaged < set(range(21, 81))
    topic = client.engine.topic("a")
    seqs, gaps = walk(client, topic, nodes=frozenset({"me"}))
    assert (seqs, gaps) == ([*range(1, 21), *range(81, 401)], [])
    seqs, gaps = walk(client, topic, nodes=frozenset({"you"}))
    assert (seqs, gaps) == (sorted({*range(21, 81)} - damaged), [(min(damaged), max(damaged))])


def test_an_extent_whose_tables_are_damaged_is_told_as_one_gap_of_what_lives_in_it(
    client: Sealer, stepping: list[Any]
) -> None:
    fill(client)
    client.delete_records("a", before_seq=5)
    (segment, entry), *_ = extents(client)
    assert entry.first_seq == 1
    hurt(client, segment, entry.tables_at + 5)
    seqs, gaps = walk(client, client.engine.topic("a"))
    assert gaps == [(5, entry.record_count)]
    assert seqs == [*range(entry.record_count + 1, 401)]
    told = [log for log in stepping if log["event"] == "data damaged"]
    assert [(log["path"], log["offset"]) for log in told] == [
        (str(segment.path), entry.tables_at)
    ], "once, whoever reads"


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_segment_that_is_gone_under_a_running_shard_is_told_as_damaged(
    client: Sealer, how: str
) -> None:
    fill(client)
    (segment, entry), *_ = extents(client)
    client.shard.segments.close()
    segment.path.unlink() if how == "missing" else segment.path.write_bytes(
        segment.path.read_bytes()[:5000]
    )
    seqs, gaps = walk(client, client.engine.topic("a"))
    assert gaps == [(1, entry.record_count)]
    assert seqs == [*range(entry.record_count + 1, 401)]


def test_a_segment_that_cannot_be_opened_for_want_of_descriptors_is_no_damage(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    client.shard.segments.close()

    def fail(_path: Path) -> memoryview:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.store.mapped", fail)
        with pytest.raises(OSError, match="Too many"):
            walk(client, client.engine.topic("a"))
    assert walk(client, client.engine.topic("a"))[1] == []


@pytest.mark.parametrize("part", ["tables", "records"])
def test_caps_age_and_deletes_go_on_beside_damage_and_over_it(client: Sealer, part: str) -> None:
    fill(client)
    topic = client.engine.topic("a")
    (segment, entry), *_ = extents(client)
    end = entry.record_count
    if part == "tables":
        hurt(client, segment, entry.tables_at + 5)
    else:
        for chunk in range(-(-entry.blob_bytes // CHUNK_BYTES)):
            hurt(client, segment, entry.offset + chunk * CHUNK_BYTES)
    count, size = topic.count, topic.bytes
    assert count == 400
    assert client.delete_records("a", before_seq=11) == 10
    assert (topic.count, topic.start_seq) == (390, 11)
    assert 0 < topic.bytes < size
    assert client.delete_records("a", match=["tag", "Glob", "t*"]) >= 400 - end, (
        "what cannot be told to match stays"
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
def test_age_takes_what_is_damaged_at_last(client: Sealer, part: str) -> None:
    fill(client)
    topic = client.engine.topic("a")
    (segment, entry), *_ = extents(client)
    if part == "tables":
        hurt(client, segment, entry.tables_at + 5)
    else:
        hurt_seqs(client, segment, 0, 1)
    client.put("a", ttl_ms=3_000)
    client.engine.expire(topic, client.now)
    # One came every 10 ms. Where no time can be read, nothing goes before what follows is too old.
    assert topic.start_seq == (1 if part == "tables" else 400 - 299)
    for _ in range(10):
        client.later(500)
        client.append("a", 1)
        client.engine.expire(topic, client.now)
    assert topic.start_seq > 400


def test_after_a_start_damage_is_found_and_told_and_counts_stay(client: Sealer) -> None:
    fill(client)
    client.delete_records("a", match=["tag", "Eq", "t1"])
    client.checkpoint()
    count = client.engine.topic("a").count
    (segment, entry), *_ = extents(client)
    client.kill()
    hurt(client, segment, entry.tables_at + 5)
    again = client.again()
    topic = again.engine.topic("a")
    assert topic.count == count
    seqs, gaps = walk(again, topic)
    assert [first for first, _ in gaps] == [1]
    assert len(seqs) > 100
    again.kill()


# Found before it is sealed


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Sealer]:
    """Its log files hold some twenty small writes."""
    client = Sealer(tmp_path / "data", file_bytes=FILE_HEADER_BYTES + 4096)
    yield client
    client.give_up()
    if client.wal.writer._thread.is_alive():
        client.kill()


def frames_of(path: Path) -> list[Any]:
    data = memoryview(path.read_bytes())
    header = decode_file_header(data)
    return [*scan_frames(data, FILE_HEADER_BYTES, header.base, header.seed)]


def flip(path: Path, offset: int, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ bit]))


def two_topics(client: Sealer, writes: int = 40) -> None:
    for number in range(writes):
        client.append("a", number, number)
        client.append("b", number, tag="t", key=f"k{number}")
    client.advance()


def damaged_by(header: Any) -> dict[int, list[tuple[int, int]]]:
    """By topic id, what readers must be told when this frame is damaged."""
    if header.kind != FrameKind.APPEND:
        return {}
    return {header.topic_id: [(header.first_seq, header.first_seq + header.record_count - 1)]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_frame_is_never_sealed_but_told_for_good(
    small: Sealer, seed: int, stepping: list[Any]
) -> None:
    dice = random.Random(seed)
    two_topics(small)
    first = files(small.path, "wal")[0]
    header = dice.choice(frames_of(first))
    offset = FILE_HEADER_BYTES + header.lsn
    at = offset + dice.randrange(FRAME_HEADER_BYTES + header.body_len)
    flip(first, at, 1 << dice.randrange(8))
    hurt_bytes = first.read_bytes()
    small.checkpoint()
    expected = damaged_by(header)
    for life in range(3):
        for name in ("a", "b"):
            topic = small.engine.topic(name)
            head = topic.head_seq
            seqs, gaps = walk(small, topic)
            assert gaps == expected.get(topic.id, []), life
            assert seqs == sorted({*range(1, head + 1)} - lost(gaps)), life
            assert topic.count == len(seqs)
        assert [(str(first) + ".damaged", offset)] == [
            (str(found.path), found.offset) for found in findings(small.path)
        ]
        if life == 0:
            assert (str(first), offset) in [
                (log["path"], log["offset"]) for log in stepping if log["event"] == "data damaged"
            ]
            small.kill()
            small = small.again()
            two_topics(small)
            small.checkpoint()
            small.checkpoint()
            assert not first.exists(), "nothing needs it any more"
        if life == 1:
            small.stop()
            small = small.again()
    assert Path(f"{first}.damaged").read_bytes() == hurt_bytes, "and no log file has its room"
    small.kill()


def test_a_frame_that_is_damaged_at_the_front_of_a_topic_is_told_as_damaged(small: Sealer) -> None:
    two_topics(small)
    first = files(small.path, "wal")[0]
    header = next(header for header in frames_of(first) if header.kind == FrameKind.APPEND)
    flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES + 3)
    small.checkpoint()
    topic = small.engine.by_id[header.topic_id]
    for _ in range(2):
        topic = small.engine.by_id[header.topic_id]
        page = small.page(topic.name)
        assert page.tombstone is not None
        assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (
            1,
            2,
            "damaged",
        )
        assert topic.start_seq == 3
        small.kill()
        small = small.again()
    small.kill()


def test_pages_that_were_read_ahead_of_a_damaged_frame_are_void(small: Sealer) -> None:
    two_topics(small)
    first = files(small.path, "wal")[0]
    header = next(header for header in frames_of(first) if header.kind == FrameKind.APPEND)
    words = Board.create(1, 1).heads(0)
    writer, reader = HeadWriter(words), HeadReader(words)
    small.commits.on_commit = writer.committed
    mark = writer.mark(small.engine.by_id[header.topic_id])
    flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES + 3)
    small.checkpoint()
    assert reader.head(mark) is None


def test_a_topic_that_is_configured_after_damage_keeps_what_it_tells(small: Sealer) -> None:
    two_topics(small)
    first = files(small.path, "wal")[0]
    header = [header for header in frames_of(first) if header.kind == FrameKind.APPEND][4]
    flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES)
    small.checkpoint()
    topic = small.engine.by_id[header.topic_id]
    _, told = walk(small, topic)
    assert told == damaged_by(header)[topic.id]
    small.put(topic.name, ttl_ms=3_600_000)
    small.kill()
    small = small.again()
    assert walk(small, small.engine.topic(topic.name))[1] == told
    small.put(topic.name, ttl_ms=0, cap_records=3)
    page = small.page(topic.name)
    assert page.tombstone is not None
    assert page.tombstone.reason == "mixed", "cap and damage"
    assert (page.tombstone.gap_from, page.count) == (1, 3)
    small.kill()


def test_only_what_lived_in_a_damaged_frame_is_told(small: Sealer) -> None:
    for _ in range(60):
        small.append("a", *range(5))
    small.delete_records("a", before_seq=8)
    first = files(small.path, "wal")[0]
    headers = [header for header in frames_of(first) if header.kind == FrameKind.APPEND]
    for header in headers[:2]:
        flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES)
    small.checkpoint()
    topic = small.engine.topic("a")
    assert (topic.count, topic.start_seq) == (300 - 10, 11)
    page = small.page("a", from_seq=7)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (
        8,
        10,
        "damaged",
    )


def test_before_it_is_sealed_a_damaged_frame_refuses_the_start(small: Sealer) -> None:
    two_topics(small)
    first = files(small.path, "wal")[0]
    header = frames_of(first)[3]
    small.kill()
    flip(first, FILE_HEADER_BYTES + header.lsn + 10)
    with pytest.raises(Damaged) as raised:
        small.again()
    assert (raised.value.path, raised.value.offset) == (first, FILE_HEADER_BYTES + header.lsn)


def test_a_damaged_write_whose_segment_could_not_be_made_does_not_come_back_with_a_restart(
    small: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.append("a", "before")
    blob = append_streamed(small, "a", ["x" * 3000] * 10)
    small.append("a", "behind")
    small.stop()
    flip(blob, 20_000)
    small = small.again()
    two_topics(small)
    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.store.write_all", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            small.seal()
    seen = small.engine.topic("a").count, walk(small, small.engine.topic("a"))
    small.stop()
    small = small.again()
    assert (small.engine.topic("a").count, walk(small, small.engine.topic("a"))) == seen
    assert seen[1][1] == [(2, 11)]
    small.kill()


def test_a_damaged_blob_is_never_sealed_but_told_and_kept(small: Sealer) -> None:
    small.append("a", "before")
    blob = append_streamed(small, "a", ["x" * 3000] * 10)
    other = append_streamed(small, "a", ["y" * 3000] * 10)
    two_topics(small)
    flip(blob, 20_000)
    hurt_bytes = blob.read_bytes()
    for _ in range(3):
        small.checkpoint()
    for _ in range(2):
        topic = small.engine.topic("a")
        seqs, gaps = walk(small, topic)
        assert gaps == [(2, 11)]
        assert seqs == [1, *range(12, topic.head_seq + 1)]
        assert [found.path.name for found in findings(small.path)] == [f"{blob.name}.damaged"]
        small.kill()
        small = small.again()
        two_topics(small)
        small.checkpoint()
        small.checkpoint()
    assert not blob.exists()
    assert not other.exists()
    assert Path(f"{blob}.damaged").read_bytes() == hurt_bytes
    small.kill()
