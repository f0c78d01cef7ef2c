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


async def test_a_streamed_append_stores_the_same_records_as_an_unstreamed_one(
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


async def test_a_blob_is_complete_before_its_frame_is_appended_to_the_log(
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


async def test_a_streamed_append_to_an_ephemeral_topic_creates_no_file(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="ephemeral")
    number = harness.append_raw("a", body(["😀" * 300] * 10))
    assert (await until(harness, number))[number]["seqs"] == list(range(1, 11))
    assert files(harness) == []
    assert datas(harness, "a") == ["😀" * 300] * 10


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_a_streamed_append_gets_its_reply_according_to_its_durability_class(
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


async def test_ts_does_not_decrease_when_the_clock_is_set_back(harness: ShardHarness) -> None:
    """The offsets of all records are computed before the first record is encoded, with the number
    of digits of this ``$ts``.
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
    assert held.reached == 1 + 9, (
        "one write for the tables, then one for every seven records of 140 bytes"
    )


# Concurrent requests


async def test_decoding_yields_to_other_tasks_after_every_chunk(
    harness: ShardHarness, nursery: trio.Nursery
) -> None:
    iterations = 0

    async def count_iterations() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(count_iterations)
    await trio.lowlevel.checkpoint()
    raw = body(PADDING * 5)
    began = iterations
    await harness.loop.services.streamed_appends._decode(raw)
    assert iterations - began > len(raw) // 1000 + len(raw) // 800, (
        "chunks of 1,000 bytes of UTF-8, then of 500 bytes and up to the next comma"
    )
    nursery.cancel_scope.cancel()


async def test_requests_that_waited_for_a_streamed_append_are_logged_without_another_message(
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


async def test_other_topics_and_all_readers_are_served_during_a_streamed_append(
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
    assert harness.seqs("a") == [1], "no streamed record is readable yet"
    held.open()
    assert (await until(harness, number))[number]["first_seq"] == 2


async def test_requests_for_the_topic_of_a_streamed_append_wait_and_keep_their_order(
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


async def test_a_streamed_duplicate_waits_for_the_first_attempt_and_gets_its_seqs(
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


async def test_a_streamed_append_waits_for_pending_changes_of_its_topic(
    harness: ShardHarness,
) -> None:
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
