"""Tests of streamed appends: the boundaries of chunks, and requests that run concurrently."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import ShardHarness
from tests.support.streamed import (
    LONG,
    PADDING,
    Held,
    body,
    datas,
    files,
    held_up,
    pass_on,
    stored,
    until,
)
from topics.actors.shard import appends
from topics.formats.disk.frames import Frame
from topics.formats.disk.records import RecordFlags
from topics.storage.verify import verify_blob

pytestmark = pytest.mark.usefixtures("small_chunks")


# Boundaries of chunks


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("length", [100, 999, 1000, 1001, 2500])
async def test_characters_at_the_boundary_of_a_chunk_are_preserved(
    harness: ShardHarness, shift: int, length: int
) -> None:
    """All characters have four bytes. With three of four shifts every boundary splits one."""
    sent = ["y" * shift, *(["😀" * (length // 4)] * (2 * LONG // length + 1)), "last"]
    number = harness.append_raw("a", body(sent))
    assert (await until(harness, number))[number]["count"] == len(sent)
    assert datas(harness, "a") == sent
    assert len(files(harness)) == 1


async def test_a_long_write_stores_what_a_short_one_would(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {
            "data": {"n": n, "t": '},{"data":'},
            **({"tag": f"t{n % 3}"} if n % 2 else {}),
            **({"meta": {"m": n}} if n % 5 == 0 else {}),
        }
        | ({"node": "own"} if n % 7 == 0 else {})
        for n in range(150)
    ]
    raw = json.dumps({"records": records, "node": "batch"}).encode()
    await until(harness, harness.append_raw("long", raw))
    monkeypatch.setattr(appends, "STREAMED_MIN_BYTES", 1 << 20)
    await until(harness, harness.append_raw("short", raw))
    long, short = stored(harness, "long"), stored(harness, "short")
    assert len(files(harness)) == 1
    assert [record | {"$ts": 0} for record in long] == [record | {"$ts": 0} for record in short]
    assert harness.engine.topics["long"].bytes == harness.engine.topics["short"].bytes


async def test_the_log_speaks_of_a_blob_that_is_whole(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[Frame], int] = harness.log.append
    seen: list[tuple[int, bool]] = []

    def append(frame: Frame) -> int:
        if frame.flags & RecordFlags.EXTERNAL:
            assert not [*verify_blob(harness.log.blobs.path(frame.topic_id, frame.first_seq))]
            seen.append((frame.first_seq, frame.length < 200))
        return real(frame)

    monkeypatch.setattr(harness.log, "append", append)
    await until(harness, harness.append_raw("a", body(PADDING)))
    assert seen == [(1, True)]


async def test_records_of_a_class_in_memory_make_no_file(harness: ShardHarness) -> None:
    harness.make("a", durability="ephemeral")
    number = harness.append_raw("a", body(["😀" * 300] * 10))
    assert (await until(harness, number))[number]["seqs"] == list(range(1, 11))
    assert files(harness) == []
    assert datas(harness, "a") == ["😀" * 300] * 10


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_a_streamed_append_is_answered_according_to_its_durability_class(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    number = harness.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(harness.commits):
            await pass_on()
    assert harness.answers() == []
    harness.written()
    await wait_all_tasks_blocked()
    assert harness.answers() == ([(number, 200)] if durability == "disk" else [])
    harness.synced()
    await wait_all_tasks_blocked()
    assert harness.answers() == ([] if durability == "disk" else [(number, 200)])


async def test_ts_does_not_go_back_when_the_clock_does(harness: ShardHarness) -> None:
    """The places of all records are reckoned before the first is rendered, with the digits of this
    ``$ts``.
    """
    harness.make("a")
    harness.engine.topics["a"].last_ts = 10**13
    await until(harness, harness.append_raw("a", body(PADDING)))
    assert {record["$ts"] for record in stored(harness, "a")} == {10**13}


async def test_small_records_share_a_write(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    held.open()
    await until(harness, harness.append_raw("a", body(PADDING)))
    assert held.reached == 1 + 9, "the tables, then seven records of 140 bytes each time"


# Concurrent requests


async def test_decoding_gives_way_at_every_piece(
    harness: ShardHarness, nursery: trio.Nursery
) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(others)
    await trio.lowlevel.checkpoint()
    raw = body(PADDING * 5)
    began = turns
    await harness.loop.services.streamed_appends._decode(raw)
    assert turns - began > len(raw) // 1000 + len(raw) // 800, (
        "UTF-8 by 1,000 bytes, then records by 500 and up to the next comma"
    )
    nursery.cancel_scope.cancel()


async def test_what_waited_goes_to_the_log_without_another_message(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    harness.make("a")
    number, small = harness.append_raw("a", body(PADDING)), harness.append("a", "small")
    held.open()
    with trio.fail_after(20):
        while number not in dict(harness.answers()):
            harness.log.sync()
            harness.commits.advance()
            await pass_on()
    harness.log.sync()
    harness.commits.advance()
    assert harness.answers() == [(small, 200)]


@pytest.mark.slow
async def test_other_requests_are_served_between_chunks(harness: ShardHarness) -> None:
    harness.make("other", durability="ephemeral")
    number = harness.append_raw("a", body(PADDING * 5))
    served = 0
    with trio.fail_after(20):
        while number not in dict(harness.answers()):
            harness.append("other", 1)
            served += bool(harness.answers())
            harness.synced()
            await pass_on()
    assert served > 30


async def test_other_topics_and_all_readers_go_on_while_it_is_written(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    harness.make("a")
    harness.append("a", "before")
    harness.written()
    harness.answers()
    number = harness.append_raw("a", body(PADDING))
    await held_up(harness, held)
    small = harness.append("b", 1)
    harness.synced()
    assert harness.answers() == [(small, 201)]
    assert harness.seqs("a") == [1], "nothing of it is seen"
    held.open()
    assert (await until(harness, number))[number]["first_seq"] == 2


async def test_what_comes_to_its_topic_meanwhile_waits_and_keeps_its_order(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    harness.make("a")
    numbers = [harness.append_raw("a", body(PADDING))]
    await held_up(harness, held)
    numbers += [
        harness.append("a", "small"),
        harness.put("a", priority=5),
        harness.append("a", 1, "two", key="k"),
        harness.append("a", 2, key="k"),
    ]
    harness.synced()
    assert harness.answers() == []
    held.open()
    answers = await until(harness, *numbers)
    assert list(answers) == numbers
    assert [answers[number].get("first_seq") for number in numbers] == [1, 61, None, 62, 62]
    assert answers[numbers[-1]]["deduped"] is True
    assert datas(harness, "a") == [*PADDING, "small", 1, "two"]


async def test_two_streamed_appends_to_one_topic_run_in_sequence(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        harness.append_raw("a", body(PADDING)),
        harness.append_raw("a", body(["b" * 100] * 50)),
        harness.append("a", "small"),
    ]
    await held_up(harness, held)
    assert len(files(harness)) == 1
    held.open()
    answers = await until(harness, *numbers)
    assert [(answers[number]["first_seq"], answers[number]["created"]) for number in numbers] == [
        (1, True),
        (61, False),
        (111, False),
    ]
    assert datas(harness, "a") == [*PADDING, *["b" * 100] * 50, "small"]


async def test_two_streamed_appends_to_different_topics_run_concurrently(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        harness.append_raw("a", body(PADDING)),
        harness.append_raw("b", body(["b" * 100] * 50)),
    ]
    await held_up(harness, held, writes=2)
    assert len(files(harness)) == 2
    held.open()
    await until(harness, *numbers)
    assert (datas(harness, "a"), datas(harness, "b")) == (PADDING, ["b" * 100] * 50)


async def test_a_long_duplicate_waits_for_the_first_and_gets_its_seqs(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        harness.append_raw("a", body(PADDING), key="k"),
        harness.append_raw("a", body(PADDING), key="k"),
        harness.append("a", 1, key="k"),
    ]
    await held_up(harness, held)
    held.open()
    answers = await until(harness, *numbers)
    assert [
        (answers[number]["first_seq"], answers[number]["count"], answers[number]["deduped"])
        for number in numbers
    ] == [
        (1, 60, False),
        (1, 60, True),
        (1, 60, True),
    ]
    assert len(files(harness)) == 1


async def test_it_waits_for_what_is_under_way_on_its_topic(harness: ShardHarness) -> None:
    harness.make("a", durability="fsync")
    small = harness.append("a", "first", key="k")
    harness.flush()
    number = harness.append_raw("a", body(PADDING), key="k")
    await wait_all_tasks_blocked()
    assert (harness.answers(), files(harness)) == ([], [])
    answers = await until(harness, small, number)
    assert [(answers[n]["first_seq"], answers[n]["deduped"]) for n in (small, number)] == [
        (1, False),
        (1, True),
    ]
