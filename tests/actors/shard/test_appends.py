"""Appends: which body is streamed, and retries with an idempotency key that is under way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from tests.support.shard import Desk
from tests.support.streamed import body, datas, files, until
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES
from topics.storage.wal.file import NoRoom

FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Idempotency keys


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_retries_of_a_key_that_is_on_its_way_wait_for_the_first_and_get_its_answer(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability=durability)
    numbers = [
        desk.append("a", 1, 2, key="k"),
        desk.append("a", 1, 2, key="k"),
        desk.append("a", "whatever", key="k"),
    ]
    desk.flush()
    desk.commits.advance()
    assert desk.answers() == []
    desk.synced()
    assert [
        (number, body["status"], body["seqs"], body["deduped"]) for number, body in desk.bodies()
    ] == [(number, 200, [1, 2], number != numbers[0]) for number in numbers]
    late = desk.append("a", 1, 2, key="k")
    assert [(number, body["seqs"], body["deduped"]) for number, body in desk.bodies()] == [
        (late, [1, 2], True)
    ]
    assert desk.seqs("a") == [1, 2]


async def test_retries_are_refused_with_the_first_and_the_key_is_free_again(desk: Desk) -> None:
    desk.make("a")
    numbers = [desk.append("a", 1, key="k"), desk.append("a", 1, key="k")]
    desk.failed(FULL)
    assert desk.answers() == [(number, "not_ready") for number in numbers]
    again = desk.append("a", 1, key="k")
    desk.written()
    assert [(number, body["first_seq"], body["deduped"]) for number, body in desk.bodies()] == [
        (again, 1, False)
    ]


async def test_a_retry_whose_topic_is_made_by_the_first_is_not_told_that_it_made_it(
    desk: Desk,
) -> None:
    first, second = desk.append("a", 1, key="k"), desk.append("a", 1, key="k")
    desk.synced()
    assert [(number, body["status"], body["created"]) for number, body in desk.bodies()] == [
        (first, 201, True),
        (second, 200, False),
    ]


async def test_a_key_lives_from_its_commit_on(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1, key="k")
    desk.commits.now = lambda: desk.loop.context.now._replace(ms=desk.loop.context.now.ms + 777)
    desk.written()
    (row,) = desk.engine.topics["a"].dedupe.rows(0, 1 << 62)
    assert row.at_ms == desk.loop.context.now.ms + 777


# Streamed or not


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_body_is_long_above_four_mebibytes(
    tmp_path: Path, nursery: trio.Nursery, extra: int
) -> None:
    desk = Desk(tmp_path, nursery)
    raw = body(["x" * 1_000_000] * 4)
    raw += b" " * (STREAMED_MIN_BYTES + extra - len(raw))
    number = desk.append_raw("a", raw)
    assert (desk.loop.context.held.waiting != {}) == bool(extra)
    answers = await until(desk, number)
    assert answers[number]["seqs"] == [1, 2, 3, 4]
    assert len(files(desk)) == extra
    assert datas(desk, "a") == ["x" * 1_000_000] * 4
