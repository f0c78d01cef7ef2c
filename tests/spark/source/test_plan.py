"""Plan: every record is read once, in tasks and batches within the limits."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.client.ranges import DELETED, RECREATED, Loss, Range
from topics.spark.source.offsets import Offsets, Position
from topics.spark.source.plan import (
    Head,
    Heads,
    Step,
    advance,
    divide,
    loss_text,
    pack,
    ranges_between,
    rewind,
    skip,
    split_absent,
    steps,
    unread,
)

HEAD = Head(earliest=11, head=50, epoch=7)


def seqs(offsets: Offsets) -> dict[str, dict[str, int]]:
    return {name: {t: at.seq for t, at in topics.items()} for name, topics in offsets.items()}


def ignore(server: str, topic: str, loss: Loss) -> None:
    """Ignore a loss."""


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400)), max_size=6),
    st.integers(1, 100),
    st.integers(1, 30),
)
def test_tasks_cover_the_ranges_in_order_within_both_limits(
    spans: list[tuple[int, int]], max_records: int, min_tasks: int
) -> None:
    ranges = [Range("s", str(i), after, after + size, 7) for i, (after, size) in enumerate(spans)]
    tasks = pack(ranges, max_records, min_tasks)
    parts = [part for task in tasks for part in task]
    seqs = [(part.topic, seq) for part in parts for seq in range(part.after, part.last)]
    assert seqs == [(one.topic, seq) for one in ranges for seq in range(one.after, one.last)]
    assert all(part.last > part.after for part in parts)
    sizes = [sum(part.last - part.after for part in task) for task in tasks]
    assert max(sizes, default=0) <= max_records
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert len(sizes) == max(-(-len(seqs) // max_records), min(min_tasks, len(seqs)))


def test_a_range_that_ends_before_its_start_does_not_shorten_others() -> None:
    crossed = Range("s", "a", 90, 10, 7)
    complete = Range("s", "b", 0, 100, 7)
    assert pack([crossed, complete], 1000, 1) == [(complete,)]
    assert pack([Range("s", "a", 200, 10, 7), complete], 1000, 1) == [(complete,)]
    assert pack([crossed], 1000, 4) == []


@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 500))
def test_a_limit_is_divided_and_no_topic_starves(lags: list[int], limit: int) -> None:
    taken = divide(lags, limit)
    lagging = sum(lag > 0 for lag in lags)
    assert all(0 <= count <= lag for count, lag in zip(taken, lags, strict=True))
    assert all(count for count, lag in zip(taken, lags, strict=True) if lag)
    assert sum(taken) <= max(limit, lagging)
    assert sum(taken) >= min(limit, sum(lags))


def test_a_limit_is_divided_in_proportion() -> None:
    assert divide([900, 100, 0], 100) == [89, 11, 0]  # at least one of each, then in proportion
    assert divide([5, 5], None) == [5, 5]
    assert divide([5, 5], 20) == [5, 5]
    assert divide([1, 1, 4], 3) == [1, 1, 1]


def test_a_batch_reads_the_ranges_between_its_offsets() -> None:
    start: Offsets = {"s": {"a": Position(3, 7), "b": Position(5, 7), "recreated": Position(9, 7)}}
    end: Offsets = {
        "s": {
            "a": Position(8, 7),
            "b": Position(5, 7),
            "recreated": Position(12, 8),
            "new": Position(4, 7),
        },
        "another": {"a": Position(4, 7)},
    }
    assert ranges_between(start, end) == [Range("s", "a", 3, 8, 7)]


def test_the_first_position_of_a_new_topic_is_before_its_earliest_record() -> None:
    heads: Heads = {"s": {"new": HEAD}}
    entered = advance({}, steps({}, heads, {}, ignore), None)
    assert entered == {"s": {"new": Position(10, 7, head=10)}}
    assert ranges_between({}, entered) == []
    read = advance(entered, steps(entered, heads, heads, ignore), None)
    assert ranges_between(entered, read) == [Range("s", "new", 10, 50, 7)]


def test_a_recreated_topic_restarts_and_its_loss_is_counted() -> None:
    reported: list[object] = []
    start: Offsets = {"s": {"t": Position(30, 6, lost=2)}}
    before: Heads = {"s": {"t": Head(1, 40, 6)}}
    found = steps(start, {"s": {"t": HEAD}}, before, lambda *loss: reported.append(loss))
    assert reported == [("s", "t", Loss(31, 40, RECREATED, 10))]
    assert advance(start, found, None) == {"s": {"t": Position(10, 7, lost=12, head=10)}}


def test_a_deleted_topic_keeps_its_position() -> None:
    reported: list[object] = []
    start: Offsets = {"s": {"t": Position(30, 6)}}
    found = steps(start, {"s": {}}, {}, lambda *loss: reported.append(loss))
    assert reported == [("s", "t", Loss(31, 30, DELETED, 0))]
    assert advance(start, found, None) == start


def test_only_absent_topics_of_servers_that_replied_leave_the_positions() -> None:
    at = Position(30, 6)
    start: Offsets = {"s": {"t": at, "named": at, "deleted": at}, "down": {"t": at}}
    heads: Heads = {"s": {"t": HEAD, "new": HEAD}, "another": {"t": HEAD}}
    kept, absent = split_absent(start, heads, lambda topic: topic != "named")
    assert kept == {"s": {"t": at, "named": at}, "down": {"t": at}}
    assert absent == {"s": {"deleted": at}}
    assert list(start["s"]) == ["t", "named", "deleted"]


@pytest.mark.parametrize(
    ("head_of_batch", "polled", "count"),
    [(0, {}, 0), (33, {}, 3), (30, {"t": Head(1, 40, 6)}, 10), (33, {"t": Head(1, 40, 7)}, 3)],
)
def test_unread_records_are_known_from_the_batch_or_from_a_poll(
    head_of_batch: int, polled: dict[str, Head], count: int
) -> None:
    loss = unread("s", "t", Position(30, 6, head=head_of_batch), {"s": polled}, DELETED)
    assert loss == Loss(31, 30 + count, DELETED, count)


def test_a_server_without_a_reply_keeps_its_positions() -> None:
    start: Offsets = {"down": {"t": Position(30, 6)}, "s": {"t": Position(10, 7)}}
    end = advance(start, steps(start, {"s": {"t": HEAD}}, {}, ignore), None)
    assert end == {"down": {"t": Position(30, 6)}, "s": {"t": Position(50, 7, head=50)}}


def test_a_head_below_the_position_does_not_change_the_position() -> None:
    start: Offsets = {"s": {"t": Position(60, 7)}}
    found = steps(start, {"s": {"t": HEAD}}, {}, ignore)
    assert [step.lag for step in found] == [0]
    assert advance(start, found, None) == start


def test_a_position_contains_the_head_of_its_last_change() -> None:
    heads: Heads = {"s": {"t": HEAD._replace(ts=99)}}
    start: Offsets = {"s": {"t": Position(20, 7)}}
    moved = advance(start, steps(start, heads, heads, ignore), 5)
    assert moved == {"s": {"t": Position(25, 7, 0, head=50, head_ts=99)}}
    later: Heads = {"s": {"t": HEAD._replace(head=25, ts=77)}}
    assert advance(moved, steps(moved, later, later, ignore), None) == moved


@pytest.mark.parametrize(("end_seq", "at"), [(20, Position(20, 7, 4)), (26, Position(25, 7, 3))])
def test_a_rewound_log_is_read_again_from_its_end(end_seq: int, at: Position) -> None:
    start: Offsets = {"s": {"t": Position(25, 7, 1, head=28, head_ts=9)}}
    step = rewind(Step("s", "t", start["s"]["t"], 40, 9), end_seq)
    end = advance(start, [step], None)
    assert (step.lag, end["s"]["t"]) == (0, at._replace(head=at.seq))
    assert ranges_between(start, end) == []


def test_lost_records_are_skipped_and_counted() -> None:
    step = skip(Step("s", "t", Position(4, 7, lost=1), 50), Loss(5, 10, "cap", 6))
    assert step == Step("s", "t", Position(10, 7, lost=7), 50)
    assert step.lag == 40


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=20),
    st.integers(1, 40),
)
def test_a_stream_reads_every_record_once(appends: list[tuple[str, int]], limit: int) -> None:
    heads: Heads = {"s": {"a": Head(1, 0, 7)}}
    at: Offsets = {"s": {"a": Position(0, 7)}}
    read: list[tuple[str, int]] = []
    waiting = deque(appends)
    while waiting or seqs(at)["s"] != {topic: head.head for topic, head in heads["s"].items()}:
        if waiting:
            topic, count = waiting.popleft()
            old = heads["s"].get(topic, Head(1, 0, 7))
            heads["s"][topic] = old._replace(head=old.head + count)
        end = advance(at, steps(at, heads, heads, ignore), limit)
        for found in ranges_between(at, end):
            read += [(found.topic, seq) for seq in range(found.after + 1, found.last + 1)]
        at = end
    ends = {topic: head.head for topic, head in heads["s"].items()}
    assert sorted(read) == sorted((topic, seq + 1) for topic in ends for seq in range(ends[topic]))


@pytest.mark.parametrize(
    ("loss", "text_part"),
    [
        (Loss(5, 10, "cap", 6), "offsets 5 to 10 are lost, about 6 records: evicted, to keep"),
        (Loss(5, 10, "unknown", 6), "about 6 records: unknown"),
        (Loss(5, 10, RECREATED, 6), "was deleted and created again; offsets from 5 are lost"),
        (Loss(5, 4, DELETED, 0), "no longer subscribed to on this server; offsets from 5 are lost"),
    ],
)
def test_a_loss_names_topic_server_range_and_reason(loss: Loss, text_part: str) -> None:
    text = loss_text("s", "t", loss)
    assert 'topic "t" on server s' in text
    assert text_part in text
    assert "\n" not in text
