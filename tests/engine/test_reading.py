"""Difference reads: byte budget, bounded scans, and cursors of an earlier incarnation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.shard_support import EngineHarness, seqs_of
from topics.engine.reading import SCAN_RECORDS_MAX, read
from topics.formats.api.diff_body import Diff


def filled(*writes: int, **body: Any) -> EngineHarness:
    """Return an engine whose topic ``a`` has this number of records in each write."""
    harness = EngineHarness()
    for count in writes:
        harness.append("a", *range(count), **body)
    harness.commit()
    return harness


def test_the_byte_budget_counts_the_bytes_that_are_sent() -> None:
    harness = filled(100)
    total_bytes = sum(len(chunk) for chunk in harness.read("a").chunks)
    for budget in (1, 50, 333, 1000, total_bytes - 1, total_bytes, total_bytes + 1):
        page = harness.read("a", max_batch_bytes=budget)
        sent = sum(len(chunk) for chunk in page.chunks)
        assert page.count == 1 or sent <= budget
        if page.count < 100:
            assert (
                sent + len(bytes(harness.read("a", page.next_from_seq, limit=1).chunks[0])) + 1
                > budget
            )
    assert harness.read("a", max_batch_bytes=total_bytes + 1).caught_up


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 1000])
def test_a_read_without_results_ends_after_a_bounded_scan_and_can_be_continued(batch: int) -> None:
    harness = filled(*[batch] * (3 * SCAN_RECORDS_MAX // batch), node="me")
    last = harness.engine.topic("a").head_seq
    harness.append("a", "found", node="you")
    harness.commit()
    page = harness.read("a", nodes=frozenset({"me"}))
    rounds = 1
    while page.unfinished:
        assert not page.completes_poll
        assert page.scanned <= SCAN_RECORDS_MAX + 1000
        page = read(
            harness.engine.topic("a"), Diff(nodes=frozenset({"me"})), harness, page.next_from_seq
        )
        rounds += 1
    assert rounds >= 3
    assert seqs_of(page) == [last + 1]


def test_a_read_with_results_scans_a_bounded_number_of_further_records() -> None:
    harness = EngineHarness()
    harness.append("a", "found", node="you")
    for _ in range(20):
        harness.append("a", *range(1000), node="me")
    harness.commit()
    page = harness.read("a", nodes=frozenset({"me"}))
    assert seqs_of(page) == [1]
    assert not page.unfinished
    assert not page.caught_up
    assert SCAN_RECORDS_MAX <= page.next_from_seq < SCAN_RECORDS_MAX + 2000


# Recreated topics


@pytest.mark.parametrize(
    ("from_seq", "epoch", "recreated"),
    [
        *((0, None, False), (2, None, False), (3, None, True), (0, "right", False)),
        *((3, "right", False), (0, "wrong", True), (2, "wrong", True)),
    ],
)
def test_a_cursor_of_an_earlier_incarnation_receives_a_recreated_tombstone(
    from_seq: int, epoch: str | None, recreated: bool
) -> None:
    harness = filled(2)
    topic = harness.engine.topic("a")
    given_epoch = None if epoch is None else topic.epoch - (epoch == "wrong")
    page = harness.read("a", from_seq, epoch=given_epoch)
    if not recreated:
        assert page.tombstone is None
        assert seqs_of(page) == list(range(from_seq + 1, 3))
        return
    lost = page.tombstone
    assert lost is not None
    assert (lost.gap_from, lost.gap_to, lost.reason, lost.earliest_seq, lost.head_seq) == (
        1,
        2,
        "recreated",
        1,
        2,
    )
    assert seqs_of(page) == [1, 2]
    assert page.completes_poll
