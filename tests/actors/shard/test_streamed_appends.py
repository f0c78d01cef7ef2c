"""Tests of streamed appends: the boundaries of chunks, and requests that run concurrently."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import Desk
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
    desk: Desk, shift: int, length: int
) -> None:
    """All characters have four bytes. With three of four shifts every boundary splits one."""
    sent = ["y" * shift, *(["😀" * (length // 4)] * (2 * LONG // length + 1)), "last"]
    number = desk.append_raw("a", body(sent))
    assert (await until(desk, number))[number]["count"] == len(sent)
    assert datas(desk, "a") == sent
    assert len(files(desk)) == 1


async def test_a_long_write_stores_what_a_short_one_would(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
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
    await until(desk, desk.append_raw("long", raw))
    monkeypatch.setattr(appends, "STREAMED_MIN_BYTES", 1 << 20)
    await until(desk, desk.append_raw("short", raw))
    long, short = stored(desk, "long"), stored(desk, "short")
    assert len(files(desk)) == 1
    assert [record | {"$ts": 0} for record in long] == [record | {"$ts": 0} for record in short]
    assert desk.engine.topics["long"].bytes == desk.engine.topics["short"].bytes


async def test_the_log_speaks_of_a_blob_that_is_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[Frame], int] = desk.log.append
    seen: list[tuple[int, bool]] = []

    def append(frame: Frame) -> int:
        if frame.flags & RecordFlags.EXTERNAL:
            assert not [*verify_blob(desk.log.blobs.path(frame.topic_id, frame.first_seq))]
            seen.append((frame.first_seq, frame.length < 200))
        return real(frame)

    monkeypatch.setattr(desk.log, "append", append)
    await until(desk, desk.append_raw("a", body(PADDING)))
    assert seen == [(1, True)]


async def test_records_of_a_class_in_memory_make_no_file(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    number = desk.append_raw("a", body(["😀" * 300] * 10))
    assert (await until(desk, number))[number]["seqs"] == list(range(1, 11))
    assert files(desk) == []
    assert datas(desk, "a") == ["😀" * 300] * 10


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_a_streamed_append_is_answered_according_to_its_durability_class(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability=durability)
    number = desk.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(desk.commits):
            await pass_on()
    assert desk.answers() == []
    desk.written()
    await wait_all_tasks_blocked()
    assert desk.answers() == ([(number, 200)] if durability == "disk" else [])
    desk.synced()
    await wait_all_tasks_blocked()
    assert desk.answers() == ([] if durability == "disk" else [(number, 200)])


async def test_ts_does_not_go_back_when_the_clock_does(desk: Desk) -> None:
    """The places of all records are reckoned before the first is rendered, with the digits of this
    ``$ts``.
    """
    desk.make("a")
    desk.engine.topics["a"].last_ts = 10**13
    await until(desk, desk.append_raw("a", body(PADDING)))
    assert {record["$ts"] for record in stored(desk, "a")} == {10**13}


async def test_small_records_share_a_write(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.open()
    await until(desk, desk.append_raw("a", body(PADDING)))
    assert held.reached == 1 + 9, "the tables, then seven records of 140 bytes each time"


# Concurrent requests


async def test_decoding_gives_way_at_every_piece(desk: Desk, nursery: trio.Nursery) -> None:
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
    await desk.loop.services.streamed_appends._decode(raw)
    assert turns - began > len(raw) // 1000 + len(raw) // 800, (
        "UTF-8 by 1,000 bytes, then records by 500 and up to the next comma"
    )
    nursery.cancel_scope.cancel()


async def test_what_waited_goes_to_the_log_without_another_message(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    number, small = desk.append_raw("a", body(PADDING)), desk.append("a", "small")
    held.open()
    with trio.fail_after(20):
        while number not in dict(desk.answers()):
            desk.log.sync()
            desk.commits.advance()
            await pass_on()
    desk.log.sync()
    desk.commits.advance()
    assert desk.answers() == [(small, 200)]


@pytest.mark.slow
async def test_other_requests_are_served_between_chunks(desk: Desk) -> None:
    desk.make("other", durability="ephemeral")
    number = desk.append_raw("a", body(PADDING * 5))
    served = 0
    with trio.fail_after(20):
        while number not in dict(desk.answers()):
            desk.append("other", 1)
            served += bool(desk.answers())
            desk.synced()
            await pass_on()
    assert served > 30


async def test_other_topics_and_all_readers_go_on_while_it_is_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    desk.append("a", "before")
    desk.written()
    desk.answers()
    number = desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    small = desk.append("b", 1)
    desk.synced()
    assert desk.answers() == [(small, 201)]
    assert desk.seqs("a") == [1], "nothing of it is seen"
    held.open()
    assert (await until(desk, number))[number]["first_seq"] == 2


async def test_what_comes_to_its_topic_meanwhile_waits_and_keeps_its_order(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    numbers = [desk.append_raw("a", body(PADDING))]
    await held_up(desk, held)
    numbers += [
        desk.append("a", "small"),
        desk.put("a", priority=5),
        desk.append("a", 1, "two", key="k"),
        desk.append("a", 2, key="k"),
    ]
    desk.synced()
    assert desk.answers() == []
    held.open()
    answers = await until(desk, *numbers)
    assert list(answers) == numbers
    assert [answers[number].get("first_seq") for number in numbers] == [1, 61, None, 62, 62]
    assert answers[numbers[-1]]["deduped"] is True
    assert datas(desk, "a") == [*PADDING, "small", 1, "two"]


async def test_two_streamed_appends_to_one_topic_run_in_sequence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        desk.append_raw("a", body(PADDING)),
        desk.append_raw("a", body(["b" * 100] * 50)),
        desk.append("a", "small"),
    ]
    await held_up(desk, held)
    assert len(files(desk)) == 1
    held.open()
    answers = await until(desk, *numbers)
    assert [(answers[number]["first_seq"], answers[number]["created"]) for number in numbers] == [
        (1, True),
        (61, False),
        (111, False),
    ]
    assert datas(desk, "a") == [*PADDING, *["b" * 100] * 50, "small"]


async def test_two_streamed_appends_to_different_topics_run_concurrently(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [desk.append_raw("a", body(PADDING)), desk.append_raw("b", body(["b" * 100] * 50))]
    await held_up(desk, held, writes=2)
    assert len(files(desk)) == 2
    held.open()
    await until(desk, *numbers)
    assert (datas(desk, "a"), datas(desk, "b")) == (PADDING, ["b" * 100] * 50)


async def test_a_long_duplicate_waits_for_the_first_and_gets_its_seqs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        desk.append_raw("a", body(PADDING), key="k"),
        desk.append_raw("a", body(PADDING), key="k"),
        desk.append("a", 1, key="k"),
    ]
    await held_up(desk, held)
    held.open()
    answers = await until(desk, *numbers)
    assert [
        (answers[number]["first_seq"], answers[number]["count"], answers[number]["deduped"])
        for number in numbers
    ] == [
        (1, 60, False),
        (1, 60, True),
        (1, 60, True),
    ]
    assert len(files(desk)) == 1


async def test_it_waits_for_what_is_under_way_on_its_topic(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    small = desk.append("a", "first", key="k")
    desk.flush()
    number = desk.append_raw("a", body(PADDING), key="k")
    await wait_all_tasks_blocked()
    assert (desk.answers(), files(desk)) == ([], [])
    answers = await until(desk, small, number)
    assert [(answers[n]["first_seq"], answers[n]["deduped"]) for n in (small, number)] == [
        (1, False),
        (1, True),
    ]
