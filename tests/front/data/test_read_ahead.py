"""Reading ahead: when a request is predicted, and when a prediction is kept, used or dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from topics.actors.link.heads import HeadMark
from topics.errors import NotReady, TopicsError
from topics.formats.api.answers import difference, difference_end
from topics.formats.wire.calls import DIFF, DiffAheadResult, DiffResult
from topics.formats.wire.contract import Call, P, R
from topics.front.answers import Answer
from topics.front.data import read_ahead
from topics.front.data.read_ahead import (
    PREDICTIONS_MAX,
    RUN_PAGES_MAX,
    RUNS_MAX,
    PageKey,
    ReadAhead,
)
from topics.front.drain import Drain
from topics.front.request import Request


class Reply:
    def __init__(self, result: DiffResult | DiffAheadResult, body: bytes) -> None:
        self.result, self.body, self.released = result, memoryview(body), False

    def release(self) -> None:
        assert not self.released
        self.released = True


class Shard:
    """A shard with one topic of ``head`` numbers. Its replies to reads ahead may be delayed."""

    def __init__(self, head: int = 100) -> None:
        self.top, self.version = head, 1
        self.diff_cursors: list[int] = []  # cursors of ordinary diffs
        self.runs: list[tuple[int, int]] = []  # cursors and page counts of reads ahead
        self.waiting: list[Callable[[], None]] = []
        self.holds = False
        self.is_down = False
        self.replies: list[Reply] = []

    def call(
        self,
        shard: int,
        call: Call[P, R],
        params: Any,
        body: bytes,
        then: Callable[[Any], None],
    ) -> None:
        query = msgspec.json.decode(body)
        if call is DIFF:
            self.diff_cursors.append(query["from_seq"])
            page, following = self._page(query["from_seq"], query["limit"])
            end = difference_end(**self._end(following))
            result = DiffResult(following if following < self.top else None)
            then(self._reply(result, difference("t", page, end)))
            return
        self.runs.append((query["from_seq"], params.page_count))
        answer = self._ahead(query["from_seq"], query["limit"], params.page_count)
        if self.holds:
            self.waiting.append(lambda: then(answer))
        else:
            then(answer)

    def head(self, shard: int, mark: HeadMark) -> int | None:
        return self.top if mark.version == self.version else None

    def _ahead(self, cursor: int, limit: int, pages: int) -> Reply | TopicsError:
        if self.is_down:
            return NotReady("the shard is down")
        found: list[tuple[int, int, int]] = []
        bodies: list[bytes] = []
        while len(found) < pages and cursor + limit < self.top:
            page, cursor = self._page(cursor, limit)
            bodies.append(difference("t", page))
            found.append((len(bodies[-1]), cursor, len(page)))
        result = DiffAheadResult(found, (0, self.version), 1, 7) if found else DiffAheadResult()
        return self._reply(result, b"".join(bodies))

    def _page(self, cursor: int, limit: int) -> tuple[list[bytes], int]:
        numbers = range(cursor + 1, min(cursor + limit, self.top) + 1)
        return [b'{"$seq":%d}' % number for number in numbers], cursor + len(numbers)

    def _end(self, following: int) -> dict[str, Any]:
        return {
            "next_from_seq": following,
            "head_seq": self.top,
            "earliest_seq": 1,
            "epoch": 7,
            "tombstone": None,
            "scanned": 0,
            "total_ms": 0.0,
        }

    def _reply(self, result: DiffResult | DiffAheadResult, body: bytes) -> Reply:
        self.replies.append(Reply(result, body))
        return self.replies[-1]


class Reader:
    def __init__(self, ahead: ReadAhead, limit: int = 10, topic: str = "t") -> None:
        self.ahead, self.limit, self.cursor = ahead, limit, 0
        self.request = cast("Request", type("FakeRequest", (), {"topic": topic, "shard": 0})())

    def body(self) -> bytes:
        return b'{"from_seq":%d,"limit":%d}' % (self.cursor, self.limit)

    def page(self) -> dict[str, Any]:
        """Return the next page, or an empty one if the reader must wait for it."""
        pages: list[dict[str, Any]] = []
        self.ahead.diff(
            self.request,
            self.body(),
            time.monotonic_ns(),
            lambda answer: pages.append(self._decode(answer)),
        )
        return pages[0] if pages else {}

    def _decode(self, answer: Answer | TopicsError) -> dict[str, Any]:
        assert isinstance(answer, Answer)
        page: dict[str, Any] = msgspec.json.decode(answer.body)
        answer.done()
        expected = range(self.cursor + 1, page["next_from_seq"] + 1)
        assert [record["$seq"] for record in page["records"]] == list(expected)
        self.cursor = page["next_from_seq"]
        return page


def released(shard: Shard) -> bool:
    return all(reply.released for reply in shard.replies)


def test_a_sequential_reader_gets_its_pages_without_a_request_to_the_shard() -> None:
    shard = Shard(1000)
    reader = Reader(ReadAhead(cast("Any", shard), Drain()))
    while not (reader.page())["caught_up"]:
        pass
    assert shard.diff_cursors[:2] == [0, 10]
    assert shard.diff_cursors[2:] == [990], "only the shard may return the page at the head"
    assert [pages for _, pages in shard.runs[:6]] == [1, 2, 4, 8, RUN_PAGES_MAX, RUN_PAGES_MAX]
    assert released(shard)


def test_single_pages_are_not_sequential_reading() -> None:
    shard = Shard()
    ahead = ReadAhead(cast("Any", shard), Drain())
    for cursor in (0, 50, 20, 70, 0):
        reader = Reader(ahead)
        reader.cursor = cursor
        reader.page()
    assert shard.runs == []


def test_a_page_has_the_current_head_and_a_stale_page_is_dropped() -> None:
    shard = Shard(1000)
    reader = Reader(ReadAhead(cast("Any", shard), Drain()))
    for _ in range(4):
        reader.page()
    shard.top = 1500
    page = reader.page()
    assert (page["head_seq"], page["lag"]) == (1500, 1450)
    count_before = len(shard.diff_cursors)
    shard.version += 1
    reader.page()
    reader.page()
    assert len(shard.diff_cursors) == count_before + 2, "a stale page was used"
    assert released(shard)


def test_a_fast_reader_waits_for_the_requested_page() -> None:
    shard = Shard()
    reader = Reader(ReadAhead(cast("Any", shard), Drain()))
    reader.page()
    shard.holds = True
    reader.page()
    assert (reader.page(), reader.cursor) == ({}, 20)
    shard.waiting.pop()()
    assert (reader.cursor, shard.diff_cursors) == (30, [0, 10])


@pytest.mark.parametrize("is_down", [True, False])
def test_without_a_page_read_ahead_the_shard_is_requested(is_down: bool) -> None:
    shard = Shard(35)
    shard.is_down = is_down
    reader = Reader(ReadAhead(cast("Any", shard), Drain()), limit=15)
    while not (reader.page())["caught_up"]:
        pass
    assert shard.diff_cursors == [0, 15, 30]
    assert released(shard)


@pytest.mark.slow
def test_predictions_are_bounded_and_the_oldest_is_dropped() -> None:
    shard = Shard(100_000)
    ahead = ReadAhead(cast("Any", shard), Drain())
    readers = [Reader(ahead, limit) for limit in range(1, PREDICTIONS_MAX + 2)]
    for reader in readers:
        reader.page()
    oldest, _, another, *_ = readers
    oldest.page()  # predicted again, which drops the second
    assert shard.runs == []
    another.page()
    assert len(shard.runs) == 1


def test_runs_are_bounded_and_only_a_stale_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard(100_000)
    ahead = ReadAhead(cast("Any", shard), Drain())
    readers = [Reader(ahead, limit) for limit in range(1000, 1000 + RUNS_MAX)]
    for reader in readers:
        reader.page()
        reader.page()
    late = Reader(ahead, 2000)
    for _ in range(3):
        late.page()
    assert len(shard.runs) == RUNS_MAX
    readers[0].page()  # its run is now the newest
    monkeypatch.setattr(read_ahead, "STALE_NS", 0)
    count_before = len(shard.diff_cursors)
    for _ in range(3):
        late.page()
    assert len(shard.diff_cursors) == count_before + 1, "the stale run was not replaced"
    readers[0].page()
    assert len(shard.diff_cursors) == count_before + 1
    readers[1].page()
    assert len(shard.diff_cursors) == count_before + 2


def test_a_run_above_the_bound_answers_only_the_waiting_page() -> None:
    shard = Shard(100_000)
    ahead = ReadAhead(cast("Any", shard), Drain())
    late = Reader(ahead, 10)
    late.page()
    late.page()  # a run of one page has arrived
    shard.holds = True
    late.page()  # a run of two is requested
    assert late.page() == {}, "the page must not be available yet"
    shard.holds = False
    for limit in range(1000, 1000 + RUNS_MAX):
        other = Reader(ahead, limit)
        other.page()
        other.page()
    shard.waiting.pop()()
    assert late.cursor == 40
    count_before = len(shard.diff_cursors)
    late.page()
    assert len(shard.diff_cursors) == count_before + 1


def test_a_page_read_ahead_is_used_once() -> None:
    shard = Shard(1000)
    ahead = ReadAhead(cast("Any", shard), Drain())
    first, second = Reader(ahead), Reader(ahead)
    for _ in range(4):
        first.page()
    second.cursor = 30
    count_before = len(shard.diff_cursors)
    second.page()
    assert len(shard.diff_cursors) == count_before + 1


# Keys


def test_requests_without_exactly_one_cursor_are_not_predicted() -> None:
    assert not PageKey("t", b'{"limit":5}').has_cursor
    assert not PageKey("t", b'{"from_seq":1,"from_seq":2}').has_cursor
    key = PageKey("t", b'{"node":"\\"from_seq\\":5","from_seq" : 1}')
    assert key.has_cursor
    assert key.moved_to(9).body == b'{"node":"\\"from_seq\\":5","from_seq" : 9}'
