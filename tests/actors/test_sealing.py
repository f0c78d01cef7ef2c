"""Sealing, a step at a time: nothing that anyone can notice changes by it, whatever happens between
two steps or fails in one.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.actors.sealing_support import (
    FILE_BYTES,
    Sealer,
    by_hand,
    copy,
    files,
    findings,
    no_syncs,
    spoil,
)
from tests.storage.log_support import LIMITS
from topics.actors.shard import sealing
from topics.engine.changes.delete_records import matching_seqs
from topics.engine.store import EXTENT, RESIDENT
from topics.formats.api.requests import TagMatch, decode_append, decode_config
from topics.formats.disk.rendering import Rendering
from topics.formats.disk.segment_build import build
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.formats.json_text import json_bytes
from topics.storage import checkpoints
from topics.storage.disk import Damaged
from topics.storage.segments.store import SegmentStore, SegmentWriter, split_locator
from topics.storage.wal.log import Wal
from topics.storage.wal.spares import SPARES_MAX

Seen = dict[str, Any]


@pytest.fixture(autouse=True)
def stepping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    by_hand(monkeypatch)
    no_syncs(monkeypatch)
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Sealer]:
    client = Sealer(tmp_path / "data")
    yield client
    client.give_up()
    if client.wal.writer._thread.is_alive():
        client.kill()


def seen(client: Sealer) -> Seen:
    """Everything about the topics that a reader or a writer can notice."""
    return {
        name: {
            "id": topic.id, "config": topic.config, "head": topic.head_seq, "next": topic.next_seq, "count": topic.count,
            "bytes": topic.bytes, "earliest": topic.earliest_seq, "floors": (topic.cap_floor, topic.ttl_floor, topic.loss_floor),
            "keys": [(key, write[:2]) for key, write in topic.dedupe.items()], "records": client.shown(name),
            "tagged": [sorted(living(client, name, match)) for match in (TagMatch("Eq", "even"), TagMatch("Glob", "o"))],
        }
        for name, topic in sorted(client.engine.topics.items())
    }  # fmt: skip


def living(client: Sealer, name: str, match: TagMatch) -> set[int]:
    topic = client.engine.topics[name]
    return {*matching_seqs(topic, match, topic.head_seq + 1, client.engine.store)} & {
        record["$seq"] for record in client.shown(name)
    }


def fill(client: Sealer, *names: str, rounds: int = 12, size: int = 60) -> None:
    for number in range(rounds):
        for name in names:
            tag = "odd" if number % 2 else "even"
            records = [
                {"data": [name, number], "tag": tag, "meta": {"m": "x" * size}},
                {"data": number, "node": "n", "tag": f"o{number}"},
            ]
            client.append(name, key=f"{name}{client.filled[name]}", records=records)
            client.filled[name] += 1


def sealed(client: Sealer, name: str) -> bool:
    locators = client.engine.topic(name).index.locators()
    return any(locator & EXTENT and not locator & RESIDENT for locator in locators)


def survives_a_kill(client: Sealer, before: Seen) -> None:
    """All is there after a kill as it was before."""
    client.kill()
    comes_back(client, before)


def comes_back(client: Sealer, before: Seen) -> None:
    """All is there when a client that has ended starts again."""
    again = client.again()
    assert seen(again) == before
    again.kill()


def delete(
    client: Sealer, name: str, before_seq: int | None = None, match: TagMatch | None = None
) -> None:
    client.submit(client.engine.delete_records(name, before_seq, match, client.now))
    client.wait()


# Nothing changes


def test_everything_reads_the_same_before_and_after_and_after_a_restart(client: Sealer) -> None:
    client.put("capped", cap_records=5)
    client.put("old", ttl_ms=50)
    client.put("memory", durability="ephemeral")
    fill(client, "a", "capped", "old", "memory")
    delete(client, "a", match=TagMatch("Eq", "odd"))
    client.later(20)
    fill(client, "a", "old")
    before = seen(client)
    client.seal()
    assert client.sealing.sealed > 5
    assert sealed(client, "a")
    assert seen(client) == before
    client.kill()
    again = client.again()
    after = seen(again)
    del before["memory"], after["memory"]
    assert after == before
    assert findings(client.path) == []
    again.kill()


def test_records_in_memory_between_sealed_ones_stay_where_they_are(client: Sealer) -> None:
    for durability in ("disk", "ephemeral", "memory", "ephemeral", "fsync"):
        client.put("a", durability=durability)
        fill(client, "a", rounds=8)
    before = seen(client)
    client.seal()
    assert seen(client) == before
    locators = [*client.engine.topic("a").index.locators()]
    assert any(locator & RESIDENT for locator in locators)
    assert any(locator & EXTENT and not locator & RESIDENT for locator in locators)


def test_the_log_comes_first_while_a_segment_is_made_and_no_longer(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, seen = sys.getswitchinterval(), []

    def watched(*arguments: Any) -> Iterator[bytes]:
        seen.append(sys.getswitchinterval())
        yield from build(*arguments)

    monkeypatch.setattr(sealing, "build", watched)
    fill(client, "a", rounds=10)
    client.seal()
    assert max(seen) == pytest.approx(sealing.SWITCH_S)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_what_comes_in_a_burst_is_sealed_after_it_or_when_it_is_too_much(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "BUSY_BYTES", 1)

    def until_whole(files: int) -> None:
        while client.wal.whole_since(client.sealing.replay_from) < files:
            client.append("t", records=[{"data": "x" * 100}])

    until_whole(1)
    client.seal()
    assert client.sealing.sealed == 0, "the log has grown since the last look"
    client.seal()
    assert client.sealing.sealed == 1, "it has not"
    until_whole(1)
    client.seal()
    until_whole(2)
    client.seal()
    assert client.sealing.sealed == 3, "too much waits"


def test_a_long_round_makes_checkpoints_on_its_way_and_lets_go_of_log_files(client: Sealer) -> None:
    fill(client, "a", rounds=60)
    before, waiting = seen(client), client.wal.whole_since(client.sealing.replay_from)
    assert waiting > 8
    client.seal()
    assert client.sealing.sealed == waiting
    assert client.sealing.written == -(-waiting // sealing.AT_ONCE)
    assert len(client.wal._bases) <= 2 * sealing.AT_ONCE + 1, (
        "what two checkpoints need, and the one that is written"
    )
    assert seen(client) == before


def test_the_more_files_wait_the_less_it_rests() -> None:
    rests = [sealing.rest_after(0.001, waiting) for waiting in range(sealing.BACKLOG + 2)]
    assert rests[: sealing.BEHIND + 1] == pytest.approx([0.006] * (sealing.BEHIND + 1))
    assert rests[sealing.BEHIND :] == sorted(rests[sealing.BEHIND :], reverse=True)
    assert rests[sealing.BACKLOG - 1] > 0
    assert rests[sealing.BACKLOG :] == [0.0, 0.0]
    assert sealing.rest_after(1.0, 0) == sealing.REST_MAX_S


def test_a_write_may_be_split_over_extents_and_keeps_its_key(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "build", functools.partial(build, extent_records=4))
    client.append("a", *range(11), key="eleven")
    fill(client, "a")
    client.append("a", *range(30), key="thirty")
    fill(client, "a")
    before = seen(client)
    client.seal()
    assert len(client.engine.topic("a").index) > 10
    assert seen(client) == before
    client.kill()
    again = client.again()
    assert seen(again) == before
    assert again.append("a", 1, key="eleven") == (1, True)
    again.kill()


def test_a_long_write_is_taken_in_and_its_file_goes_after_two_checkpoints(client: Sealer) -> None:
    client.append("a", 0)
    topic = client.engine.topic("a")
    blob = append_streamed(client, "a", ["x" * 3000] * 10)
    fill(client, "a", rounds=4)
    before = seen(client)
    client.seal()
    assert blob.exists()
    assert seen(client) == before
    assert sealed(client, "a")
    client.checkpoint()
    client.checkpoint()
    assert not blob.exists()
    assert topic.count == 1 + 10 + 8
    assert findings(client.path) == []
    survives_a_kill(client, before)


def test_a_log_file_that_outlives_its_blobs_is_no_damage(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("a", 0)
    blob = append_streamed(client, "a", ["x" * 3000] * 10)
    fill(client, "a", rounds=4)
    before = seen(client)
    monkeypatch.setattr(Wal, "retire", failing(errno.EIO))
    with pytest.raises(OSError):
        client.checkpoint()
    assert not blob.exists()
    assert files(client.path, "wal")[0].name.startswith("0" * 16)
    assert findings(client.path) == []
    client.kill()
    spoil(client.path)
    comes_back(client, before)


def append_streamed(client: Sealer, name: str, datas: list[Any]) -> Path:
    body = decode_append(json_bytes({"records": [{"data": data} for data in datas]}), None, LIMITS)
    topic = client.engine.topic(name)
    rendering = Rendering(body, keep_key=False)
    ends = rendering.ends(topic.next_seq, client.now.ts)
    change = client.engine.append_streamed(topic, body, rendering, ends[-1], client.now)
    head = [rendering.ext, ends.tobytes(), *rendering.tables]
    writer = client.wal.blobs.begin(topic.id, change.first_seq, sum(map(len, head)) + ends[-1])
    writer.write(head)
    writer.write(rendering.render(0, len(datas), change.first_seq, change.ts))
    writer.finish()
    client.submit(change)
    client.wait()
    return client.wal.blobs.path(topic.id, change.first_seq)


@pytest.mark.slow
def test_ten_thousand_topics(tmp_path: Path) -> None:
    client = Sealer(tmp_path / "data", file_bytes=1 << 20)
    for number in range(10_000):
        client.start(f"t{number}", number)
        if number % 500 == 0:
            client.wait()
    client.wait()
    fill(client, "last", rounds=2000, size=300)
    assert client.wal.whole_files()
    client.seal()
    client.kill()
    again = client.again()
    assert len(again.engine.topics) == 10_001
    assert [again.shown(f"t{number}")[0]["data"] for number in range(0, 10_000, 977)] == [
        *range(0, 10_000, 977)
    ]
    again.kill()


# Between any two steps


def recreate(client: Sealer) -> None:
    client.delete("a")
    fill(client, "a", rounds=2)


EVENTS: dict[str, Callable[[Sealer], None]] = {
    "delete by tag": lambda client: delete(client, "a", match=TagMatch("Eq", "odd")),
    "delete below": lambda client: delete(client, "a", before_seq=9),
    "delete all": lambda client: delete(client, "a", before_seq=1 << 40),
    "a cap": lambda client: client.put("a", cap_records=3),
    "a topic goes": lambda client: client.delete("a"),
    "a topic comes again": lambda client: recreate(client),
    "more writes": lambda client: fill(client, "a", "b", rounds=2),
    "another class": lambda client: client.put(
        "a", durability="fsync", idempotency_window_ms=500_000
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_whatever_comes_between_two_steps_comes_to_the_same(event: str, tmp_path: Path) -> None:
    def run(steps: int) -> tuple[Seen, Seen, bool]:
        client = Sealer(copy(origin, tmp_path / "data"))
        going_on = all(client.step() for _ in range(steps))
        EVENTS[event](client)
        client.seal()
        shown = seen(client)
        client.kill()
        assert findings(client.path) == []
        again = client.again()
        found = seen(again)
        again.kill()
        return shown, found, going_on

    first = Sealer(tmp_path / "origin")
    fill(first, "a", "b", rounds=6)
    first.kill()
    origin = first.path
    expected, _, _ = run(0)
    steps, going_on = 0, True
    while going_on:
        steps += 1
        shown, found, going_on = run(steps)
        assert shown == expected, f"after {steps} steps"
        assert found == expected, f"after {steps} steps and a restart"
    assert steps > 30


def test_a_topic_whose_end_is_undone_while_it_is_sealed_keeps_its_records(client: Sealer) -> None:
    fill(client, "a", "b", rounds=6)
    before = seen(client)
    change = client.engine.delete("a", False, client.now)
    assert change is not None
    client.submit(change)  # not handed over, so the log does not hold it
    while client.sealing.sealed < 1:
        assert client.step()
    client.commits._lose(OSError(errno.ENOSPC, "full"))
    client.wal.resume(client.wal._start)
    try:
        client.seal()
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017 - it may come, and need not
    assert seen(client) == before
    client.checkpoint()
    survives_a_kill(client, before)


def test_no_checkpoint_tells_of_a_topic_that_was_never_made(client: Sealer) -> None:
    fill(client, "a", rounds=2)
    client.under_way = client.sealing.checkpoint()
    client.submit(client.engine.put("ghost", decode_config(b"{}"), client.now))
    client.step()
    client.commits._lose(OSError(errno.ENOSPC, "full"))
    client.wal.resume(client.wal._start)
    with pytest.raises(OSError, match="undone"):
        client.seal()
    assert client.sealing.written == 0
    client.checkpoint()
    client.kill()
    again = client.again()
    assert [*again.engine.topics] == ["a"]
    again.kill()


def test_a_reader_on_a_topic_that_is_gone_finds_nothing(client: Sealer) -> None:
    fill(client, "a", rounds=3)
    topic = client.engine.topic("a")
    client.delete("a")
    assert len(topic.index) == 0


# Errors

FAILING: list[tuple[Any, str]] = [
    (SegmentStore, "begin"),
    (SegmentWriter, "write"),
    (SegmentWriter, "finish"),
    (SegmentStore, "entries"),
    (SegmentStore, "sync"),
    (checkpoints, "write"),
    (Wal, "retire"),
    (SegmentStore, "unlink"),
    (SegmentStore, "punch"),
]


@pytest.mark.parametrize(("where", "what"), FAILING, ids=[what for _, what in FAILING])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_leaves_everything_as_it_was_and_a_later_round_succeeds(
    where: Any, what: str, code: int, client: Sealer
) -> None:
    fill(client, "a", "b", "gone", rounds=10)
    client.checkpoint()
    client.delete("gone")
    delete(client, "a", before_seq=12)
    fill(client, "b", rounds=6)
    before, failures = seen(client), 0
    with pytest.MonkeyPatch.context() as patch:

        def fails(*_: object, **__: object) -> None:
            nonlocal failures
            failures += 1
            raise OSError(code, os.strerror(code))

        patch.setattr(where, what, fails)
        for _ in range(4):
            client.sealing._written_at = float("-inf")
            try:
                client.seal()
            except OSError as error:
                assert error.errno == code  # noqa: PT017 - most rounds fail, one in which nothing is due does not
            assert seen(client) == before
    assert failures
    fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    free_all(client)
    assert seen(client) == before
    assert not [path for path in client.path.rglob("*") if path.suffix in (".tmp", ".new")]
    assert len(files(client.path, "segment")) == len(
        {split_locator(locator)[0] for locator in extents(client)}
    )
    assert len(os.listdir("/proc/self/fd")) <= fds  # noqa: PTH208
    assert findings(client.path) == []
    survives_a_kill(client, before)


def extents(client: Sealer) -> list[int]:
    """Places of all that the index names."""
    locators = [
        locator for topic in client.engine.by_id.values() for locator in topic.index.locators()
    ]
    return [locator for locator in locators if locator & EXTENT and not locator & RESIDENT]


def free_all(client: Sealer) -> int:
    """Rounds until nothing is left to free; how many it took."""
    rounds = 0
    while rounds == 0 or client.sealing._wasteful:
        client.sealing._written_at = float("-inf")
        client.seal()
        rounds += 1
        assert rounds < 8, "it comes to an end"
    return rounds


def test_an_install_that_was_interrupted_seals_nothing_twice(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", "b", "c", rounds=6)
    before = seen(client)
    real, calls = sealing.Sealing._install_topic, 0

    def once(self: Any, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EIO, "a moment's weakness")
        real(self, *arguments)

    monkeypatch.setattr(sealing.Sealing, "_install_topic", once)
    with pytest.raises(OSError, match="weakness"):
        client.seal()
    assert seen(client) == before
    for end in ("kill", "stop"):
        getattr(other := Sealer(copy(client.path, client.path.with_name(end))), end)()
        comes_back(other, before)
    client.seal()
    assert seen(client) == before
    survives_a_kill(client, before)


def test_a_checkpoint_between_two_halves_of_an_install_knows_nothing_of_what_comes(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags of the segment tell what went until its last topic was installed, and the
    checkpoint is older.
    """
    client.append("a", 1)
    client.put("b", cap_records=20)
    fill(client, "a", "b", rounds=3)
    real = sealing.Sealing._install_topic

    def weak(self: Any, topic: Any, *arguments: Any) -> Any:
        if topic.name == "b":
            raise OSError(errno.EIO, "a moment's weakness")
        return real(self, topic, *arguments)

    monkeypatch.setattr(sealing.Sealing, "_install_topic", weak)
    with pytest.raises(OSError, match="weakness"):
        client.seal()
    client.under_way = client.sealing.checkpoint()
    while client.step():
        pass
    fill(client, "b", rounds=8)
    before = seen(client)
    monkeypatch.setattr(sealing.Sealing, "_install_topic", real)
    monkeypatch.setattr(sealing.Sealing, "checkpoint", lambda _: sealing.trio.sleep(0))
    client.seal()
    assert seen(client) == before
    client.wal.flush(sync=True)
    client.advance()
    client.seal()
    assert not client.shard.segments._marks
    client.kill()
    again = client.again()
    assert seen(again) == before
    again.kill()


@pytest.mark.parametrize("steps", range(1, 8))
def test_what_goes_with_all_that_follows_up_to_the_middle_of_a_write_can_still_be_sealed(
    steps: int, client: Sealer
) -> None:
    """The write in which the topic begins now, some of it deleted, is none of the extent's: no flag
    of it may come among those.
    """
    for _ in range(4):
        client.append(
            "a", records=[{"data": 1, "tag": "last" if index == 7 else None} for index in range(8)]
        )
        client.append("a", "x" * 600)  # each write has its log file
    delete(client, "a", match=TagMatch("Eq", "last"))
    for _ in range(steps):
        client.step()
    delete(client, "a", before_seq=12)
    before = seen(client)
    client.seal()
    assert seen(client) == before
    client.kill()
    again = client.again()
    assert seen(again) == before
    again.kill()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_mark_that_the_disk_does_not_take_counts_at_once_and_is_written_later(
    code: int, client: Sealer
) -> None:
    fill(client, "a", "b", rounds=10)
    client.seal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topics.storage.segments.store.write_all", failing(code))
        delete(client, "a", match=TagMatch("Eq", "odd"))
        delete(client, "a", before_seq=4)
        before = seen(client)
        assert not [
            record
            for record in client.shown("a")
            if record["$tag"] == "odd" and record["$seq"] < 12
        ]
        with pytest.raises(OSError):
            client.checkpoint()
        assert seen(client) == before
    client.checkpoint()
    client.checkpoint()
    assert not client.shard.segments._marks
    assert seen(client) == before
    survives_a_kill(client, before)


def test_after_a_sync_of_marks_that_failed_all_flags_are_written_again(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", rounds=10)
    client.seal()
    delete(client, "a", match=TagMatch("Eq", "odd"))
    store = client.shard.segments
    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.store._sync", failing(errno.EIO))
        with pytest.raises(OSError):
            store.sync(client.wal.position)
    before = seen(client)
    for number, segment in store.segments.items():  # what the page cache held is gone
        data = bytearray(segment.path.read_bytes())
        start = segment.trailer.flags_at
        if any(split_locator(mark.locator)[0] == number for mark in store._marks):
            data[start : start + segment.trailer.record_count] = bytes(segment.trailer.record_count)
            segment.path.write_bytes(data)
    assert store._marks
    store.sync(client.wal.position)
    assert not store._marks
    assert seen(client) == before


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_full_disk_still_gives_back_what_was_deleted(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "big", rounds=30)
    client.seal()
    fill(client, "a", rounds=10)
    client.delete("big")
    before = len(files(client.path, "segment"))
    monkeypatch.setattr(SegmentStore, "begin", failing(errno.ENOSPC))
    for _ in range(3):
        client.sealing._written_at = float("-inf")
        with pytest.raises(OSError):
            client.seal()
    assert len(files(client.path, "segment")) < before


# Room


def test_what_has_gone_is_given_back_after_two_checkpoints_and_then_there_is_rest(
    client: Sealer,
) -> None:
    used, before = mostly_gone(client)
    assert free_all(client) <= 3
    assert room(client) < used * 0.6
    assert len(files(client.path, "checkpoint")) == checkpoints.KEEP
    assert len([path for path in files(client.path, "wal") if path.suffix == ".wal"]) <= 3
    assert (
        len([path for path in files(client.path, "wal") if path.suffix == ".spare"]) <= SPARES_MAX
    )
    assert seen(client) == before
    written = client.sealing.written
    for _ in range(5):
        client.sealing._written_at = float("-inf")
        client.seal()
    assert client.sealing.written == written, "an idle shard writes no checkpoints"
    delete(client, "stays", before_seq=1 << 40)
    assert free_all(client) <= 3
    assert room(client) < used * 0.2


def room(client: Sealer) -> int:
    return sum(path.stat().st_blocks * 512 for path in files(client.path, "segment"))


def mostly_gone(client: Sealer) -> tuple[int, Seen]:
    """Seal three topics and take more than half of it away: the room before that, and what is to be
    seen after it.
    """
    fill(client, "stays", "goes", "shrinks", rounds=40, size=300)
    client.seal()
    used = room(client)
    client.delete("goes")
    delete(client, "shrinks", before_seq=60)
    return used, seen(client)


def test_room_that_was_due_at_a_restart_is_given_back_after_it(client: Sealer) -> None:
    used, before = mostly_gone(client)
    client.kill()
    again = client.again()
    free_all(again)
    assert room(again) < used * 0.6
    assert seen(again) == before
    again.kill()
    third = again.again()
    assert free_all(third) <= 3
    assert seen(third) == before
    third.kill()


def test_log_files_never_pile_up(client: Sealer) -> None:
    for _ in range(15):
        fill(client, "a", rounds=8)
        client.seal()
        assert len(files(client.path, "wal")) <= 12
    assert client.sealing.sealed > 20


# Starts


@pytest.mark.slow
def test_with_the_newest_checkpoint_damaged_the_older_one_has_all_that_it_needs(
    client: Sealer,
) -> None:
    for _ in range(6):
        fill(client, "a", "b", rounds=4)
        append_streamed(client, "a", ["y" * 500])
        delete(client, "b", match=TagMatch("Eq", "odd"))
        client.seal()
        before = seen(client)
        target = copy(client.path, client.path.with_name("copy"))
        spoil(target)
        for _ in range(2):
            other = Sealer(target)
            assert seen(other) == before
            other.kill()
        other = Sealer(target)
        other.checkpoint()  # the damaged one goes, and not the one that is whole
        other.kill()
        assert len(checkpoints.whole(target / "checkpoint" / "00")) == 2
        assert findings(target) == []


def test_without_any_checkpoint_a_log_that_does_not_begin_at_0_is_damage(client: Sealer) -> None:
    fill(client, "a", rounds=30)
    client.checkpoint()
    client.checkpoint()
    client.kill()
    for path in files(client.path, "checkpoint"):
        path.unlink()
    assert findings(client.path)
    with pytest.raises(Damaged, match="missing or cut"):
        client.again()


def test_a_missing_segment_is_damage_by_name(client: Sealer) -> None:
    fill(client, "a", rounds=10)
    client.seal()
    client.kill()
    path = files(client.path, "segment")[0]
    path.unlink()
    with pytest.raises(Damaged) as raised:
        client.again()
    assert raised.value.path == path


def test_a_recycled_log_file_has_no_torn_tail_worth_telling(client: Sealer) -> None:
    for _ in range(40):
        fill(client, "a", rounds=1)
        client.seal()
    while client.wal.position - client.wal._bases[-1] > FILE_BYTES // 8:
        client.append("a", 1)
    before = seen(client)
    client.kill()
    (last,) = [
        path
        for path in files(client.path, "wal")
        if path.name.startswith(f"{client.wal._bases[-1]:016x}.wal")
    ]
    assert any(
        last.read_bytes()[FILE_HEADER_BYTES + client.wal.position - client.wal._bases[-1] :]
    ), "the file had an earlier life"
    assert findings(client.path) == []
    again = client.again()
    assert again.shard.cut_bytes == 0
    assert seen(again) == before
    again.kill()


def test_recycled_log_files_are_found_before_the_disk_knows_their_names(
    client: Sealer, tmp_path: Path
) -> None:
    fill(client, "a", rounds=60)
    free_all(client)
    recycled = [path.name for path in files(client.path, "wal") if path.suffix == ".spare"]
    assert len(recycled) == SPARES_MAX
    files_now = len(client.wal._bases)
    while len(client.wal._bases) < files_now + SPARES_MAX:
        client.append("a", 1)
    before, bases = seen(client), client.wal._bases[-SPARES_MAX:]
    client.kill()
    names = dict(zip([f"{base:016x}.wal" for base in bases], recycled, strict=True))
    for lost in ([*names], [*names][:1], [*names][1:]):
        data = copy(client.path, tmp_path / "copy")
        for name in lost:
            (data / "wal" / "00" / name).rename(data / "wal" / "00" / names[name])
        assert findings(data) == []
        again = Sealer(data, now=client.now)
        assert seen(again) == before
        assert all((data / "wal" / "00" / name).exists() for name in names)
        again.kill()


def test_a_spare_log_file_is_no_part_of_the_log_and_is_used_after_a_restart(client: Sealer) -> None:
    fill(client, "a", rounds=60)
    free_all(client)
    before = seen(client)
    spares = {
        path.name: path.stat().st_ino
        for path in files(client.path, "wal")
        if path.suffix == ".spare"
    }
    assert spares
    client.kill()
    again = client.again()
    assert seen(again) == before
    while len(again.wal._bases) < 4:
        again.append("a", 1)
    inodes = {path.stat().st_ino for path in files(again.path, "wal") if path.suffix == ".wal"}
    assert inodes >= set(spares.values())
    free_all(again)
    spares = {
        path.name: path.stat().st_ino
        for path in files(again.path, "wal")
        if path.suffix == ".spare"
    }
    assert spares
    again.kill()
    other = again.again(file_bytes=2 * client.wal.file_bytes)
    assert not [path for path in files(other.path, "wal") if path.suffix == ".spare"]
    other.kill()


def test_a_kill_in_the_same_run_of_the_machine_skips_no_seq_when_its_mark_is_sealed(
    client: Sealer,
) -> None:
    for _ in range(4):
        fill(client, "a", rounds=8)
        client.seal()
    head = client.engine.topic("a").head_seq
    assert client.wal.oldest > 0
    client.kill()
    again = client.again()
    assert again.append("a", "next") == (head + 1, False)
    again.kill()
    again = again.again(boot="second")
    assert again.append("a", "after a power loss")[0] > head + 2
    again.kill()


def test_keys_outlive_their_records_their_extents_and_their_segments(client: Sealer) -> None:
    fill(client, "a", "b", "c", rounds=12)
    delete(client, "a", before_seq=9)
    client.seal()
    delete(client, "b", match=TagMatch("Eq", "even"))
    client.put("c", cap_records=1)
    delete(client, "a", before_seq=1 << 40)
    before = seen(client)
    for _ in range(3):
        free_all(client)
        client.kill()
        client = client.again()
        assert seen(client) == before
    client.put("a", idempotency_window_ms=500_000)
    client.later(200_000)
    client.kill()
    client = client.again()
    assert client.append("a", 1, key="a3")[1]
    assert not client.append("b", 1, key="b3")[1]
    client.kill()


def test_a_key_that_was_used_again_stands_for_the_later_write(client: Sealer) -> None:
    client.append("a", 1, key="k")
    client.later(130_000)
    client.now = client.now._replace(ts=client.now.ts - 130_000)  # the wall clock steps back
    assert client.append("a", 2, key="k") == (2, False)
    client.kill()
    again = client.again()
    assert again.append("a", 3, key="k") == (2, True)
    again.kill()
