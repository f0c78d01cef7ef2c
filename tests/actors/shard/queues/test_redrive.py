"""Redrive: records are moved back to their sources, append first, delete second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.feeds import OnDisk
from tests.support.moves import (
    HOUR_MS,
    claim,
    datas,
    make_queue,
    records,
    redrive,
    run_log,
    with_fake_peers,
)
from tests.support.shard import ShardHarness
from topics.actors.shard.context import clock
from topics.actors.shard.queues import mover
from topics.actors.shard.queues import redrive as redrives
from topics.engine import selection
from topics.engine.changes import delete_records, lease_jobs
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.queue.claims import jobs_of
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicFull, TopicNotFound, TopicsError

FROM = "$dead_letter_from"


def letters(harness: ShardHarness, *sources: str | None, topic: str = "dead") -> Topic:
    """Fill a topic with dead letters. The data of each is its number."""
    if topic not in harness.engine.topics:
        harness.make(topic)
    records = [
        {"data": number} if source is None else {"data": number, "meta": {FROM: source}}
        for number, source in enumerate(sources, 1)
    ]
    harness.append(topic, records=records)
    harness.synced()
    harness.answers()
    return harness.engine.topic(topic)


async def reply(harness: ShardHarness) -> dict[str, Any]:
    """Return the reply to the pending redrive without its performance object."""
    await run_log(harness)
    ((_, body),) = harness.bodies()
    body.pop("performance", None)
    body.pop("status", None)
    return body


def counts(body: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(body.get(name) for name in ("moved", "remaining", "skipped", "reason"))


# Contents of a moved record


async def test_dead_letters_are_moved_to_the_topics_that_they_name(harness: ShardHarness) -> None:
    for name in ("a", "b"):
        make_queue(harness, name)
    letters(harness, "a", "b", "a")
    redrive(harness, "dead")
    assert await reply(harness) == {"topic": "dead", "moved": 3, "remaining": 0, "skipped": 0}
    assert (datas(harness, "a"), datas(harness, "b"), datas(harness, "dead")) == ([1, 3], [2], [])


async def test_only_the_stamp_is_removed_from_a_moved_record(harness: ShardHarness) -> None:
    harness.make("a")
    harness.make("dead")
    stamp = {FROM: "a", "$dead_letter_deliveries": 3, "$dead_letter_src_seq": 7}
    harness.append(
        "dead",
        records=[
            {"data": {"n": 1}, "tag": "t", "meta": {"trace": "z", **stamp}},
            {"data": 2, "meta": stamp},
        ],
    )
    harness.synced()
    harness.answers()
    redrive(harness, "dead")
    await reply(harness)
    first, second = records(harness, "a")
    assert (first["data"], first["$tag"], first["meta"]) == ({"n": 1}, "t", {"trace": "z"})
    assert second["data"] == 2
    assert "meta" not in second


# Selection of records


async def test_a_limit_a_bound_and_a_match_select_the_records(harness: ShardHarness) -> None:
    harness.make("a")
    harness.make("dead")
    tagged = [{"data": n, "tag": "xyx"[n % 3], "meta": {FROM: "a"}} for n in range(9)]
    harness.append("dead", records=tagged)
    harness.synced()
    harness.answers()
    redrive(harness, "dead", match="x", before_seq=8, limit=2)
    assert counts(await reply(harness)) == (2, 3, 0, None)
    assert datas(harness, "a") == [0, 2]
    redrive(harness, "dead", match=["tag", "Glob", "y*"])
    assert counts(await reply(harness)) == (3, 0, 0, None)
    redrive(harness, "dead", before_seq=6)
    assert counts(await reply(harness)) == (1, 0, 0, None)
    assert datas(harness, "dead") == [5, 6, 8]


async def test_windows_follow_each_other_up_to_the_limit(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 4)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    peers = with_fake_peers(harness)
    letters(harness, *["a"] * 12)
    redrive(harness, "dead", limit=10)
    sizes = []
    for _ in range(3):
        await run_log(harness)
        (batch,) = peers.take()
        sizes.append(len(batch.requests))
        batch.answer()
    assert sizes == [4, 4, 2]
    assert counts(await reply(harness)) == (10, 2, 0, None)


async def test_a_window_is_limited_in_bytes(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "READ_RECORDS", 1)
    monkeypatch.setattr(redrives, "COPIES_BYTES", 100)
    peers = with_fake_peers(harness)
    letters(harness, *["a"] * 4)
    redrive(harness, "dead")
    await run_log(harness)
    (batch,) = peers.take()
    assert len(batch.requests) == 2


async def test_records_appended_after_the_request_are_not_moved(harness: ShardHarness) -> None:
    peers = with_fake_peers(harness)
    letters(harness, "a")
    redrive(harness, "dead")
    await run_log(harness)
    letters(harness, "a")
    (batch,) = peers.take()
    batch.answer()
    assert counts(await reply(harness)) == (1, 0, 0, None)
    assert harness.seqs("dead") == [2]


async def test_leased_jobs_are_skipped_and_the_other_jobs_are_reserved(
    harness: ShardHarness,
) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "held", "free", "fresh")
    assert claim(harness, queue, 2) == [1, 2]
    now = harness.loop.context.clock()
    lease_jobs.nack(queue, "worker", [2], None, HOUR_MS, now)
    redrive(harness, "q", to="a")
    await run_log(harness)
    assert claim(harness, queue) == [], "the other jobs are reserved for the redrive"
    (batch,) = peers.take()
    assert [request["records"][0]["data"] for request in batch.requests] == ["free", "fresh"]
    batch.answer()
    assert counts(await reply(harness)) == (2, 1, 0, None)
    assert jobs_of(queue).counters(queue.count) == (0, 1, 0, 0)


# Skipped records


async def test_records_without_a_target_are_skipped_and_the_others_moved(
    harness: ShardHarness,
) -> None:
    make_queue(harness, "a")
    letters(harness, "a", None, "no name!", "dead", "a")
    redrive(harness, "dead")
    assert counts(await reply(harness)) == (2, 0, 3, "no_source")
    assert datas(harness, "dead") == [2, 3, 4]


async def test_targets_outside_the_prefixes_of_the_key_are_skipped(harness: ShardHarness) -> None:
    for name in ("mine.a", "other"):
        harness.make(name)
    harness.make("mine.dead")
    letters(harness, "other", "mine.a", topic="mine.dead")
    redrive(harness, "mine.dead", prefixes=["mine."])
    assert counts(await reply(harness)) == (1, 0, 1, "forbidden")
    assert (datas(harness, "other"), datas(harness, "mine.a")) == ([], [2])


async def test_records_for_missing_and_full_targets_are_skipped_and_the_others_moved(
    harness: ShardHarness,
) -> None:
    harness.make("full", cap_records=1, discard="reject")
    harness.make("free")
    letters(harness, "full", "full", "missing", "free")
    redrive(harness, "dead")
    assert counts(await reply(harness)) == (2, 0, 2, "topic_full")
    assert (datas(harness, "full"), datas(harness, "free"), datas(harness, "dead")) == (
        [1],
        [4],
        [2, 3],
    )
    assert "missing" not in harness.engine.topics


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [("missing", None, "topic_not_found"), (None, "missing", "no_source")],
)
async def test_the_reported_reason_is_that_of_the_first_skipped_record(
    harness: ShardHarness, first: str | None, second: str | None, reason: str
) -> None:
    letters(harness, first, second)
    redrive(harness, "dead")
    assert counts(await reply(harness)) == (0, 0, 2, reason)


async def test_a_target_that_has_rejected_copies_gets_no_further_ones(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 2)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    peers = with_fake_peers(harness)
    letters(harness, "a1", "b2", "a1", "b2", "a1", "a1")
    redrive(harness, "dead")
    await run_log(harness)
    for batch in peers.take():
        batch.answer(*[TopicFull("full") if batch.shard == 1 else None])
    await run_log(harness)
    (batch,) = peers.take()
    assert (batch.shard, len(batch.requests)) == (2, 1)
    batch.answer()
    assert counts(await reply(harness)) == (2, 0, 4, "topic_full")


@pytest.mark.parametrize("is_queue", [False, True])
async def test_all_other_records_are_skipped_when_the_only_target_rejects_copies(
    harness: ShardHarness, is_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are not visited one by one. Leased jobs are excluded."""
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 2)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    peers, visited = with_fake_peers(harness), list[int]()
    harness.make("dead", **({"type": "queue"} if is_queue else {}))
    dead = letters(harness, *[None] * 7)
    reserve = claims.reserve

    def note_visited(topic: Topic, seqs: list[int], now: Now) -> list[int]:
        visited.extend(seqs)
        return reserve(topic, seqs, now)

    monkeypatch.setattr(claims, "reserve", note_visited)
    if is_queue:
        assert claim(harness, dead, 4) == [1, 2, 3, 4]
        lease_jobs.nack(dead, "worker", [1, 2, 4], None, 0, harness.loop.context.clock())
    redrive(harness, "dead", to="a")
    await run_log(harness)
    (batch,) = peers.take()
    batch.answer(None, TopicNotFound("a"))
    others = (1, 5) if is_queue else (0, 6)
    assert counts(await reply(harness)) == (1, *others, "topic_not_found")
    assert harness.seqs("dead") == [2, 3, 4, 5, 6, 7]
    assert visited == [1, 2]


async def test_a_redrive_ends_after_too_many_records_that_cannot_be_moved(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is a number of skipped records for each record that it may move."""
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 2)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    monkeypatch.setattr(redrives, "SKIPPED_MIN", 3)
    monkeypatch.setattr(redrives, "SKIPPED_PER_RECORD", 1)
    letters(harness, *[None] * 9)
    for limit, skipped in ((1, 4), (5, 6)):
        redrive(harness, "dead", limit=limit)
        assert counts(await reply(harness)) == (0, 9 - skipped, skipped, "no_source")


async def test_rejected_jobs_become_claimable_as_before(harness: ShardHarness) -> None:
    notified: list[Topic] = []
    harness.loop.services.redrives._note_claimable = notified.append
    queue = make_queue(harness, "q", "x", "y")
    redrive(harness, "q", to="missing")
    assert counts(await reply(harness)) == (0, 0, 2, "topic_not_found")
    assert notified[0] is queue
    assert claim(harness, queue) == [1, 2]


# Copies in flight while others are skipped


def with_skipped(harness: ShardHarness, why: str, skipped: int, movable: int) -> list[str] | None:
    """Append records that cannot be moved, then records that can. Return the key's prefixes."""
    source = {"no source": None, "outside of the prefixes": "b2"}[why]
    letters(harness, *[source] * skipped, *["a1"] * movable)
    return ["a", "dead"] if why == "outside of the prefixes" else None


@pytest.mark.parametrize("why", ["no source", "outside of the prefixes"])
async def test_a_redrive_that_has_skipped_records_lasts_until_its_copies_are_settled(
    harness: ShardHarness, why: str
) -> None:
    """Until then, no other redrive of the topic begins and a backup waits."""
    peers, moves, held = with_fake_peers(harness), harness.loop.context.moves, list[bool]()
    prefixes = with_skipped(harness, why, skipped=20, movable=30)
    one = redrive(harness, "dead", prefixes=prefixes)
    await run_log(harness)
    other = redrive(harness, "dead", to="other2")
    moves.hold(lambda: held.append(True))
    await run_log(harness)
    (batch,) = peers.take()
    assert (batch.params.topic, len(batch.requests)) == ("a1", 30)
    assert (harness.bodies(), held) == ([], [])
    batch.answer()
    await run_log(harness)
    assert held, "no copy is in flight"
    ((answered, body),) = harness.bodies()
    reason = "no_source" if why == "no source" else "forbidden"
    assert (answered, counts(body)) == (one, (30, 0, 20, reason))
    assert peers.take() == []
    moves.release()
    await run_log(harness)
    (batch,) = peers.take()
    assert (batch.params.topic, len(batch.requests)) == ("other2", 20)
    batch.answer()
    await run_log(harness)
    ((answered, body),) = harness.bodies()
    assert (answered, counts(body)) == (other, (20, 0, 0, None))


@pytest.mark.parametrize("to", [None, "b2"])
@pytest.mark.parametrize("refusal", [TopicFull("full"), TopicNotFound("b2"), NotReady("away")])
async def test_a_target_that_rejects_from_the_second_window_on_ends_no_window_early(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, to: str | None, refusal: TopicsError
) -> None:
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 4)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    peers, moves = with_fake_peers(harness), harness.loop.context.moves
    letters(harness, *["b2", "a1"] * 6)
    redrive(harness, "dead", to=to)
    await run_log(harness)
    sent, held = 0, list[bool]()
    for window in range(4):
        held.clear()
        for batch in peers.take():
            sent += len(batch.requests)
            moves.hold(lambda: held.append(True))
            await run_log(harness)
            assert (held, harness.wire.sent) == ([], [])
            is_refused = window and batch.params.topic == "b2"
            batch.answer(*[refusal if is_refused else None] * len(batch.requests))
        await run_log(harness)
        moves.release()
        await run_log(harness)
    ((_, body),) = harness.bodies()
    moved = 4 if to else 8
    assert counts(body) == (moved, 0, 12 - moved, refusal.code)
    assert sent == (8 if to else 10), "the target gets no further copies"


async def test_a_pending_window_keeps_its_lock_after_the_reply_to_the_redrive(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers, moves, held = with_fake_peers(harness), harness.loop.context.moves, list[bool]()
    with_skipped(harness, "no source", skipped=20, movable=3)
    redrive(harness, "dead")
    await run_log(harness)
    (batch,) = peers.take()
    await trio.sleep(redrives.TIME_MAX_S + 0.1)
    assert counts(await reply(harness)) == (0, 3, 20, "no_source")
    redrive(harness, "dead", to="other2")
    moves.hold(lambda: held.append(True))
    await run_log(harness)
    assert (peers.take(), held) == ([], [])
    batch.answer()
    await run_log(harness)
    assert held
    assert harness.seqs("dead") == [*range(1, 21)]


async def test_a_job_with_an_expired_lease_is_moved(harness: ShardHarness) -> None:
    """This holds even if no pass over the queue has ended the lease."""
    queue = make_queue(harness, "q", "x", "y", max_deliveries=3)
    assert claim(harness, queue) == [1, 2]
    for lease in [*jobs_of(queue).leases.held.values()]:
        jobs_of(queue).leases.extend([lease.seq], harness.loop.context.clock().ms - 1)
    harness.make("a")
    redrive(harness, "q", to="a")
    assert counts(await reply(harness)) == (2, 0, 0, None)


# Slices


@pytest.mark.parametrize("limit", [1, 1000])
@pytest.mark.parametrize("match", [None, "x"])
@pytest.mark.parametrize("refuses", [False, True])
async def test_records_are_found_and_counted_in_slices(
    harness: ShardHarness,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    match: str | None,
    refuses: bool,
) -> None:
    """All redrives of a shard together take one slice in each iteration of the loop."""
    for name, value in {"SLICE_ENTRIES": 8, "SLICE_SEARCH_MAX": 32}.items():
        monkeypatch.setattr(selection, name, value)
        monkeypatch.setattr(delete_records, name, value)
    monkeypatch.setattr(delete_records, "SLICE_RECORDS", 8)
    monkeypatch.setattr(delete_records, "WINDOW_MIN_SEQS", 8)
    harness.make("a", **({"cap_records": 1, "discard": "reject"} if refuses else {}))
    for topic in ("d1", "d2"):
        harness.make(topic, type="queue")
        for _ in range(100):
            harness.append(topic, records=[{"data": n, "tag": "xy"[n]} for n in range(2)])
    harness.synced()
    harness.answers()
    slices = Slices(monkeypatch)
    for topic in ("d1", "d2"):
        redrive(harness, topic, to="a", match=match, limit=limit)
    await run_log(harness, 60)
    trio.lowlevel.remove_instrument(slices)
    matching_count = 100 if match else 200
    bodies = [body for _, body in harness.bodies()]
    assert len(bodies) == 2
    for body in bodies:
        assert body["moved"] + body["remaining"] + body["skipped"] == matching_count
    assert sum(body["moved"] for body in bodies) == (
        1 if refuses else min(2 * limit, 2 * matching_count)
    )
    assert slices.max_per_iteration == 1
    assert slices.count > 20, "the slices are small"


class Slices(trio.abc.Instrument):
    """Count the slices that redrives take in each iteration of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.max_per_iteration = self._now = 0
        trio.lowlevel.add_instrument(self)
        for name in ("search", "count_slice"):
            monkeypatch.setattr(redrives.Transfer, name, self._counting(name))

    def _counting(self, name: str) -> Any:
        real = getattr(redrives.Transfer, name)

        def counted(*args: Any) -> Any:
            self.count, self._now = self.count + 1, self._now + 1
            return real(*args)

        return counted

    def before_io_wait(self, timeout: float) -> None:
        self.max_per_iteration, self._now = max(self.max_per_iteration, self._now), 0


# Rejected redrives


@pytest.mark.parametrize(
    ("body", "prefixes", "code"),
    [
        ({"to": "dead"}, None, "invalid_request"),
        ({"to": "other"}, ["dead"], "forbidden"),
        ({"limit": 0}, None, "invalid_request"),
    ],
)
async def test_an_invalid_redrive_is_rejected(
    harness: ShardHarness, body: dict[str, Any], prefixes: list[str] | None, code: str
) -> None:
    letters(harness, "a")
    number = redrive(harness, "dead", prefixes=prefixes, **body)
    assert harness.answers() == [(number, code)]


async def test_a_redrive_of_a_missing_topic_is_rejected(harness: ShardHarness) -> None:
    number = redrive(harness, "dead")
    assert harness.answers() == [(number, "topic_not_found")]


async def test_a_redrive_of_an_empty_topic_moves_nothing(harness: ShardHarness) -> None:
    harness.make("dead")
    redrive(harness, "dead")
    assert counts(await reply(harness)) == (0, 0, 0, None)


# Changes during a redrive


async def test_a_slow_redrive_gets_its_reply_in_time_and_its_window_is_completed(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(harness)
    letters(harness, "a1", "b2")
    redrive(harness, "dead")
    await run_log(harness)
    one, other = peers.take()
    one.answer()
    await run_log(harness)
    await trio.sleep(redrives.TIME_MAX_S - 0.1)
    assert harness.wire.sent == []
    await trio.sleep(0.2)
    assert counts(await reply(harness)) == (1, 1, 0, None)
    other.answer()
    await run_log(harness)
    assert harness.seqs("dead") == []
    assert harness.bodies() == [], "the redrive gets one reply"


async def test_redrives_of_one_topic_run_one_after_another(harness: ShardHarness) -> None:
    peers = with_fake_peers(harness)
    letters(harness, "a", "a")
    one = redrive(harness, "dead", limit=1)
    await run_log(harness)
    other = redrive(harness, "dead", to="b")
    await run_log(harness)
    (batch,) = peers.take()
    batch.answer()
    await run_log(harness)
    (batch,) = peers.take()
    assert (batch.params.topic, len(batch.requests)) == ("b", 1)
    batch.answer()
    await run_log(harness)
    found = [(number, *counts(body)) for number, body in harness.bodies()]
    assert found == [(one, 1, 1, 0, None), (other, 1, 0, 0, None)]
    assert not harness.loop.services.redrives._locks


async def test_a_redrive_that_waits_for_another_gets_its_reply_in_time(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(harness)
    letters(harness, "a", "a")
    one, other = redrive(harness, "dead"), redrive(harness, "dead")
    await run_log(harness)
    (batch,) = peers.take()
    await trio.sleep(redrives.TIME_MAX_S + 0.1)
    await run_log(harness)
    found = sorted((number, *counts(body)) for number, body in harness.bodies())
    assert found == [(one, 0, 2, 0, None), (other, 0, 2, 0, None)]
    batch.answer()
    await run_log(harness)
    assert peers.unanswered == []


@pytest.mark.parametrize("is_queue", [False, True])
async def test_a_redrive_of_a_topic_that_is_deleted_ends_with_the_records_moved_so_far(
    harness: ShardHarness, is_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 2)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    peers = with_fake_peers(harness)
    harness.make("dead", **({"type": "queue"} if is_queue else {}))
    letters(harness, "a", "a", "a")
    redrive(harness, "dead")
    await run_log(harness)
    harness.delete("dead")
    await run_log(harness)
    harness.answers()
    (batch,) = peers.take()
    batch.answer()
    assert counts(await reply(harness)) == (2, 0, 0, None)


async def test_records_of_a_topic_deleted_before_their_selection_are_not_copied(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete that the log has rejected is retried at the end of an iteration."""
    peers, retries = with_fake_peers(harness), harness.loop.services.retries
    letters(harness, "a")
    redrive(harness, "dead")
    monkeypatch.setattr(retries, "on_due", lambda: harness.delete("dead"))
    retries.is_due = True
    await run_log(harness)
    assert "dead" not in harness.engine.topics
    assert not peers.unanswered


async def test_records_deleted_during_a_redrive_are_not_counted(harness: ShardHarness) -> None:
    peers = with_fake_peers(harness)
    letters(harness, "a1", "b2", "b2")
    redrive(harness, "dead", limit=1)
    await run_log(harness)
    harness.delete_records("dead", before_seq=3)
    await run_log(harness)
    harness.answers()
    (batch,) = peers.take()
    batch.answer()
    assert counts(await reply(harness)) == (1, 1, 0, None)


async def test_a_log_failure_leaves_the_records_in_their_topic(harness: ShardHarness) -> None:
    peers = with_fake_peers(harness)
    queue = make_queue(harness, "q", "x", "y")
    redrive(harness, "q", to="a")
    await run_log(harness)
    (batch,) = peers.take()
    batch.answer(None, TopicFull("full"))
    harness.failed(OSError(5, "broken"))
    assert counts(await reply(harness)) == (0, 0, 2, "not_ready")
    assert claim(harness, queue) == [1, 2]


async def test_temporarily_unreadable_records_fail_the_redrive_and_stay(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(harness, "q", "x")

    def records_of(*_: object) -> Any:
        raise OSError(24, "too many open files")

    notified: list[Topic] = []
    monkeypatch.setattr(harness.loop.services.redrives, "_note_claimable", notified.append)
    number = redrive(harness, "q", to="a")
    with monkeypatch.context() as patched:
        patched.setattr(claims, "records_of", records_of)
        await run_log(harness)
    assert notified == [queue], "waiting claimers are notified that the jobs are claimable"
    ((answered, body),) = harness.bodies()
    assert (answered, "code" in body) == (number, True)
    assert claim(harness, queue) == [1]


async def test_the_disconnect_of_the_front_ends_a_redrive(harness: ShardHarness) -> None:
    peers = with_fake_peers(harness)
    letters(harness, *["a"] * 3)
    redrive(harness, "dead")
    harness.session.close()
    await run_log(harness)
    assert len(peers.unanswered) <= 1


# A crash between copy and delete


@pytest.mark.slow
@pytest.mark.parametrize("is_queue", [False, True])
async def test_a_crash_between_copy_and_delete_duplicates_no_record(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, is_queue: bool
) -> None:
    """This holds within the idempotency window of the target."""
    first = OnDisk(tmp_path, nursery, now=clock())
    for name in ("a", "dead"):
        first.put(name, **({"type": "queue"} if is_queue else {}))
    await first.settled()
    first.append("dead", records=[{"data": n, "meta": {FROM: "a"}} for n in range(3)])
    await first.settled()

    async def never_return(*_: object) -> None:
        await trio.sleep_forever()

    # The process is killed before it can delete.
    monkeypatch.setattr(mover, "_delete", never_return)
    redrive(first, "dead")
    while "a" not in first.engine.topics or first.engine.topic("a").head_seq < 3:
        await trio.lowlevel.checkpoint()
    await first.settled()
    await first.end()
    monkeypatch.undo()

    second = OnDisk(tmp_path, nursery, now=clock())
    assert (len(second.seqs("a")), len(second.seqs("dead"))) == (3, 3)
    redrive(second, "dead")
    while second.engine.topic("dead").count:
        await trio.lowlevel.checkpoint()
    await second.settled()
    second.bodies()
    assert datas(second, "a") == [0, 1, 2]
    await second.end()


async def test_a_stopping_shard_moves_no_further_window(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 1)
    monkeypatch.setattr(redrives, "READ_RECORDS", 1)
    peers = with_fake_peers(harness)
    letters(harness, "a", "a")
    redrive(harness, "dead")
    await run_log(harness)
    harness.loop.context.is_stopping = True
    (batch,) = peers.take()
    batch.answer()
    assert counts(await reply(harness)) == (1, 1, 0, None)
