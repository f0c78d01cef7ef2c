"""Appends in one message: neighbours share a frame, and each gets the reply that it would get
alone, in order.
"""

from __future__ import annotations

import errno
import os
import random
import time
from operator import itemgetter
from typing import Any

import pytest
import trio

from tests.support.shard import ShardHarness
from topics.actors.shard import appends
from topics.engine.changes import append
from topics.engine.priority import NEW_BAND, TOP_BAND
from topics.errors import Internal
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import APPEND, AppendParams, band_in
from topics.formats.wire.envelope import Failure, decode
from topics.storage.wal.log_file import NoSpace

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


def body(*datas: Any, **fields: Any) -> dict[str, Any]:
    return {"records": [{"data": data} for data in datas], **fields}


def outcomes_of(answers: list[dict[str, Any]]) -> list[Any]:
    """Return the seqs of the successful requests and the error codes of the others."""
    return [answer.get("code") or answer["seqs"] for answer in answers]


@pytest.mark.parametrize("durability", CLASSES)
async def test_all_appends_of_a_message_get_their_replies_together_and_in_order(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    number = harness.append_many("a", body(1), body(2, 3), body(4))
    harness.synced()
    ((replied, answers),) = harness.batches()
    assert (replied, outcomes_of(answers)) == (number, [[1], [2, 3], [4]])
    assert (
        [answer["last_seq"] for answer in answers]
        == [answer["head_seq"] for answer in answers]
        == [1, 3, 4]
    )
    assert {(answer["topic"], answer["created"], answer["deduped"]) for answer in answers} == {
        ("a", False, False)
    }
    assert harness.seqs("a") == [1, 2, 3, 4]


def frames(harness: ShardHarness) -> list[int]:
    """Return the number of records of each APPEND frame."""
    return [
        frame.record_count
        for frame in harness.log.frames.values()
        if frame.kind is FrameKind.APPEND
    ]


@pytest.mark.parametrize("end", ["written", "synced"])
async def test_appends_of_a_message_share_a_frame_and_wait_for_their_durability_class(
    harness: ShardHarness, end: str
) -> None:
    harness.make("a", durability="disk" if end == "written" else "fsync")
    harness.append_many("a", body(1), body(2))
    assert frames(harness) == [2]
    harness.flush()
    assert harness.batches() == []
    if end == "synced":
        harness.written()
        assert harness.batches() == []
    getattr(harness, end)()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == [[1], [2]]


async def test_requests_with_a_key_or_a_config_have_their_own_frames_in_order(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    key, config = {"idempotency_key": "k"}, {"config": {"ttl_ms": 5}}
    harness.append_many(
        "a", body(1), body(2, 3), body(4, **key), body(5), b"bad", body(6), body(7, **config)
    )
    assert frames(harness) == [3, 1, 2, 1]
    harness.written()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == [[1], [2, 3], [4], [5], "invalid_request", [6], [7]]


async def test_a_group_ends_at_its_maximum_length(harness: ShardHarness) -> None:
    harness.make("a")
    long = "x" * (appends.JOINED_MAX_BYTES // 3)
    harness.append_many("a", *[body(long)] * 5, body(long * 4), body(1))
    assert frames(harness) == [2, 2, 1, 1, 1]


async def test_records_of_a_group_keep_their_own_members(harness: ShardHarness) -> None:
    records: list[dict[str, Any]] = [
        {"data": 1},
        {"data": 2, "node": "n", "tag": "t"},
        {"data": 3, "meta": {"k": [1.10]}},
        {"data": 4, "tag": "t"},
    ]
    harness.make("a")
    harness.append_many("a", *[{"records": [record]} for record in records], body(5))
    harness.append_many("a", *[{"records": [record], "node": "m"} for record in records], body(6))
    assert frames(harness) == [5, 4, 1]
    harness.written()
    harness.batches()
    harness.diff("a", include_tags=True)
    ((_, page),) = harness.bodies()
    read = [{k: v for k, v in each.items() if k not in ("$seq", "$ts")} for each in page["records"]]
    named = [{"$" * (k in ("node", "tag")) + k: v for k, v in record.items()} for record in records]
    assert read == [*named, {"data": 5}, *[{"$node": "m", **each} for each in named], {"data": 6}]


async def test_a_delay_applies_only_to_the_job_that_has_it(harness: ShardHarness) -> None:
    harness.make("q", type="queue")
    far = {"records": [{"data": 3, "delay_ms": 1 << 60}]}
    harness.append_many("q", body(1), {"records": [{"data": 2, "delay_ms": 60_000}]}, body(4))
    assert frames(harness) == [3]
    harness.append_many("q", body(5), far, body(6))
    assert frames(harness) == [3, 1, 1]
    harness.written()
    answers = [answer for _, batch in harness.batches() for answer in batch]
    assert outcomes_of(answers) == [[1], [2], [3], [4], "invalid_request", [5]]
    assert answers[4]["detail"] == {"index": 0}
    jobs = harness.engine.topic("q").jobs
    assert jobs is not None
    assert jobs.counters(5).delayed == 1


CONFIGS: list[dict[str, Any]] = [
    {},
    {"cap_records": 3},
    {"cap_bytes": 300},
    {"cap_records": 5, "discard": "reject"},
    {"cap_bytes": 300, "discard": "reject"},
    {"type": "queue", "cap_records": 4},
]


def some_body(rng: random.Random) -> dict[str, Any] | bytes:
    def sometimes(share: float, **fields: Any) -> dict[str, Any]:
        return fields if rng.random() < share else {}

    if rng.random() < 0.1:
        return b"{"
    records = [
        {"data": "x" * rng.choice([0, 1, 50, 400])}
        | sometimes(0.2, tag=rng.choice("tu"))
        | sometimes(0.1, node="n")
        | sometimes(0.1, meta={"k": 1})
        | sometimes(0.05, delay_ms=rng.choice([60_000, 1 << 60]))
        for _ in range(rng.choice([1, 1, 1, 2, 3]))
    ]
    key = sometimes(0.1, idempotency_key=rng.choice("kl"))
    return {"records": records} | key | sometimes(0.2, node=rng.choice("nm"))


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
async def test_a_message_has_the_same_effects_as_its_requests_one_by_one(
    harness: ShardHarness, durability: str, config: dict[str, Any]
) -> None:
    rng = random.Random(str((durability, config)))
    for name in ("together", "alone"):
        harness.make(name, durability=durability, **config)
    for _ in range(30):
        bodies = [some_body(rng) for _ in range(rng.randint(1, 8))]
        outcomes, states = [], []
        for name in ("together", "alone"):
            for some in [bodies] if name == "together" else [[body] for body in bodies]:
                harness.append_many(name, *some)
            harness.synced()
            outcomes.append(
                [
                    outcomes_of([answer])[0]
                    for _, some in sorted(harness.batches(), key=itemgetter(0))
                    for answer in some
                ]
            )
            topic = harness.engine.topic(name)
            harness.diff(name, limit=1000, include_tags=True, include_meta=True)
            ((_, page),) = harness.bodies()
            records = [{**record, "$ts": 0} for record in page["records"]]
            jobs = topic.jobs.counters(topic.count) if topic.jobs is not None else None
            size = topic.count, topic.bytes, topic.pending, topic.pending_bytes
            states.append((records, size, topic.start_seq, topic.floors, jobs))
        assert outcomes[0] == outcomes[1]
        assert states[0] == states[1]


async def test_a_batch_to_a_fast_topic_does_not_wait_for_one_to_a_slow_topic(
    harness: ShardHarness,
) -> None:
    harness.make("slow", durability="fsync")
    harness.make("quick", durability="ephemeral")
    slow = harness.append_many("slow", body(1), body(2))
    quick = harness.append_many("quick", body(3), body(4))
    assert [number for number, _ in harness.batches()] == [quick]
    harness.written()
    assert harness.batches() == []
    harness.synced()
    assert [number for number, _ in harness.batches()] == [slow]


async def test_the_duration_of_each_request_starts_at_its_arrival_at_the_front(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    raw = [json_bytes(body(number)) for number in range(3)]
    now, lengths = time.monotonic_ns(), [len(each) for each in raw]
    ats = [now, now - 5_000_000_000, now]
    harness.request(
        APPEND, AppendParams("a", None, True, None, now, lengths, ats=ats), b"".join(raw)
    )
    harness.written()
    ((_, answers),) = harness.batches()
    took_s = [answer["performance"]["server_total_ms"] // 5000 for answer in answers]
    assert took_s == [0, 1, 0]


BAD = [
    (b"nonsense", "invalid_request"),
    (b"", "invalid_request"),
    (b'{"records":[]}', "invalid_request"),
    (b'{"records":[{"data":"\xff"}]}', "invalid_request"),
    (json_bytes({"records": [{"data": 1, "tag": "x" * 257}]}), "invalid_request"),
    (json_bytes({"records": [{"data": 1, "meta": {"k": "x" * (17 << 10)}}]}), "record_too_large"),
    (json_bytes({"records": [{"data": 1}], "config": {"type": "nope"}}), "invalid_request"),
]


@pytest.mark.parametrize(("bad", "code"), BAD, ids=[str(content)[:40] for content, _ in BAD])
async def test_an_invalid_request_does_not_affect_its_neighbours(
    harness: ShardHarness, bad: bytes, code: str
) -> None:
    harness.make("a")
    harness.append_many("a", bad, body(1), bad, bad, body(2), bad)
    harness.written()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == [code, [1], code, code, [2], code]
    assert harness.seqs("a") == [1, 2]


async def test_a_batch_of_invalid_requests_gets_its_replies_immediately(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    harness.append_many("a", b"{", b"[")
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == ["invalid_request"] * 2
    assert all(answer["message"] for answer in answers)


async def test_an_error_in_a_batch_keeps_its_detail(harness: ShardHarness) -> None:
    harness.make("a", cap_records=2, discard="reject")
    harness.append_many("a", body(1), body(2, 3), body(4), body(5))
    harness.written()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == [[1], "topic_full", [2], "topic_full"]
    assert answers[1]["detail"] == {"topic": "a", "cap_records": 2, "cap_bytes": 0}


async def test_an_unexpected_error_of_one_request_is_reported_only_to_that_request(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.make("a")
    decide = append.decide

    def broken(table: Any, name: str, request: Any, *rest: Any) -> Any:
        if b"2" in [bytes(record.data) for record in request.records]:
            raise ZeroDivisionError("a bug")
        return decide(table, name, request, *rest)

    monkeypatch.setattr(append, "decide", broken)
    harness.append_many("a", body(1), body(2), body(3))
    harness.written()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == [[1], Internal.code, [2]]
    assert "ZeroDivisionError" not in str(answers), "internal details are only logged"


@pytest.mark.slow
@pytest.mark.parametrize("durability", CLASSES)
async def test_a_key_that_occurs_twice_in_a_message_is_written_once(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    first, other = {"idempotency_key": "k"}, {"idempotency_key": "l"}
    harness.append_many(
        "a",
        body(1, **first),
        body(2, **first),
        body(3),
        body(4, **other),
        body(5, **first),
        body(6, **other),
    )
    harness.synced()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == [[1], [1], [2], [3], [1], [3]]
    assert [answer["deduped"] for answer in answers] == [False, True, False, False, True, True]
    assert harness.seqs("a") == [1, 2, 3]


async def test_a_retry_in_another_message_waits_for_the_first_attempt(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    alone = harness.append("a", 1, key="k")
    harness.append_many("a", body(2, idempotency_key="k"), body(3))
    harness.append_many("a", body(4, idempotency_key="k"))
    harness.written()
    assert harness.wire.sent == []
    harness.synced()
    alone_frame, *batches = harness.wire.take()
    assert decode(alone_frame.payload).cid == alone
    harness.wire.sent = batches
    assert sorted(outcomes_of(answers) for _, answers in harness.batches()) == [[[1]], [[1], [2]]]
    assert harness.seqs("a") == [1, 2]


async def test_only_the_first_request_creates_the_topic_and_reports_it(
    harness: ShardHarness,
) -> None:
    refused = body(0, create=False)
    harness.append_many("a", refused, body(1, config={"durability": "memory"}), body(2), refused)
    harness.written()
    assert harness.batches() == []
    harness.synced()
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == ["topic_not_found", [1], [2], [3]]
    assert [answer.get("created") for answer in answers] == [None, True, False, False]


async def test_requests_without_space_are_rejected_individually_and_the_log_continues(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append_many("a", body(1, idempotency_key="k"), body(2, idempotency_key="k"), body(3))
    harness.failed(FULL)
    ((_, answers),) = harness.batches()
    assert outcomes_of(answers) == ["not_ready"] * 3
    harness.append_many("a", body(4, idempotency_key="k"), body(5))
    harness.written()
    ((_, answers),) = harness.batches()
    assert (outcomes_of(answers), [answer["deduped"] for answer in answers]) == (
        [[1], [2]],
        [False, False],
    )


async def test_a_broken_log_rejects_the_complete_batch(harness: ShardHarness) -> None:
    harness.make("a")
    harness.failed(OSError(errno.EIO, os.strerror(errno.EIO)))
    harness.append_many("a", body(1), body(2))
    (frame,) = harness.wire.take()
    failure = decode(frame.payload)
    assert isinstance(failure, Failure)
    assert failure.data["code"] == "not_ready"


async def test_a_batch_waits_in_order_for_a_streamed_append(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appends, "STREAMED_MIN_BYTES", 1000)
    harness.make("a", durability="ephemeral")
    long = harness.append("a", *["x" * 200] * 9)
    burst = harness.append_many("a", body(1), b"bad", body(2))
    assert harness.wire.sent == []
    while len(harness.wire.sent) < 2:
        await trio.lowlevel.checkpoint()
    first, second = harness.wire.take()
    assert decode(first.payload).cid == long
    harness.wire.sent = [second]
    ((number, answers),) = harness.batches()
    assert (number, outcomes_of(answers)) == (burst, [[10], "invalid_request", [11]])


async def test_seqs_are_omitted_unless_requested(harness: ShardHarness) -> None:
    harness.make("a", durability="ephemeral")
    harness.append_many("a", body(1), body(2), with_seqs=False)
    ((_, answers),) = harness.batches()
    assert [("seqs" in answer, answer["last_seq"]) for answer in answers] == [
        (False, 1),
        (False, 2),
    ]


async def test_outcomes_contain_the_band_of_the_topic(harness: ShardHarness) -> None:
    def bands() -> list[list[int]]:
        harness.synced()
        answers = [decode(frame.payload) for frame in harness.wire.take()]
        results = [APPEND.result._make(answer.result) for answer in answers]
        return [[*map(band_in, result.outcomes)] for result in results]

    harness.make("high", priority=1000)
    harness.make("low", priority=-1)
    harness.append("high", 1)
    harness.append("low", 1)
    harness.append_many("high", body(1), b"{", body(2))
    harness.append_raw("low", b"{")
    assert bands() == [[0], [TOP_BAND], [0], [TOP_BAND] * 3]
    harness.append("new", 1)
    harness.append("made so", 1)  # An invalid name
    harness.append("made", 1, config={"priority": 300})
    assert bands() == [[NEW_BAND], [NEW_BAND], [3]]
    harness.diff("new")
    harness.synced()
    harness.wire.take()
    harness.append("new", 1)
    assert bands() == [[3]]
