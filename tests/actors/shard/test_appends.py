"""Appends: which bodies are streamed, and retries with an idempotency key whose append is
pending.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from tests.support.shard import ShardHarness
from tests.support.streamed import body, datas, files, until
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Idempotency keys


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_retries_of_a_pending_key_wait_for_the_first_attempt_and_get_its_reply(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    numbers = [
        harness.append("a", 1, 2, key="k"),
        harness.append("a", 1, 2, key="k"),
        harness.append("a", "ignored", key="k"),
    ]
    harness.flush()
    harness.commits.advance()
    assert harness.answers() == []
    harness.synced()
    assert [
        (number, body["status"], body["seqs"], body["deduped"]) for number, body in harness.bodies()
    ] == [(number, 200, [1, 2], number != numbers[0]) for number in numbers]
    late = harness.append("a", 1, 2, key="k")
    assert [(number, body["seqs"], body["deduped"]) for number, body in harness.bodies()] == [
        (late, [1, 2], True)
    ]
    assert harness.seqs("a") == [1, 2]


async def test_retries_are_rejected_with_the_first_attempt_and_the_key_is_free_again(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    numbers = [harness.append("a", 1, key="k"), harness.append("a", 1, key="k")]
    harness.failed(FULL)
    assert harness.answers() == [(number, "not_ready") for number in numbers]
    third = harness.append("a", 1, key="k")
    harness.written()
    assert [(number, body["first_seq"], body["deduped"]) for number, body in harness.bodies()] == [
        (third, 1, False)
    ]


async def test_only_the_first_attempt_reports_that_it_created_the_topic(
    harness: ShardHarness,
) -> None:
    first, second = harness.append("a", 1, key="k"), harness.append("a", 1, key="k")
    harness.synced()
    assert [(number, body["status"], body["created"]) for number, body in harness.bodies()] == [
        (first, 201, True),
        (second, 200, False),
    ]


async def test_the_window_of_a_key_begins_at_its_commit(harness: ShardHarness) -> None:
    harness.make("a")
    harness.append("a", 1, key="k")
    harness.commits.now = lambda: harness.loop.context.now._replace(
        ms=harness.loop.context.now.ms + 777
    )
    harness.written()
    (row,) = harness.engine.topics["a"].dedupe.rows(0, 1 << 62)
    assert row.at_ms == harness.loop.context.now.ms + 777


# Streamed bodies


@pytest.mark.parametrize("extra", [0, 1])
async def test_only_a_body_above_four_mebibytes_is_streamed(
    tmp_path: Path, nursery: trio.Nursery, extra: int
) -> None:
    harness = ShardHarness(tmp_path, nursery)
    raw = body(["x" * 1_000_000] * 4)
    raw += b" " * (STREAMED_MIN_BYTES + extra - len(raw))
    number = harness.append_raw("a", raw)
    assert (harness.loop.context.held.waiting != {}) == bool(extra)
    answers = await until(harness, number)
    assert answers[number]["seqs"] == [1, 2, 3, 4]
    assert len(files(harness)) == extra
    assert datas(harness, "a") == ["x" * 1_000_000] * 4
