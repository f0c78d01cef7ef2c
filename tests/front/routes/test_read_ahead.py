"""Reading ahead: when the next request is guessed, and when a guess is kept, used and dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
import trio

from topics.actors.link.heads import HeadMark
from topics.errors import NotReady, TopicsError
from topics.formats.api.answers import difference, difference_end
from topics.formats.wire.calls import DiffAheadResult, DiffResult
from topics.formats.wire.contract import Call, P, R
from topics.front.answers import Answer
from topics.front.request import Request
from topics.front.routes import guesses
from topics.front.routes.guesses import GUESSES_MAX, RUNS_MAX
from topics.front.routes.read_ahead import RUN_PAGES_MAX, ReadAhead


class Reply:
    def __init__(self, result: DiffResult | DiffAheadResult, body: bytes) -> None:
        self.result, self.body, self.released = result, body, False

    def release(self) -> None:
        assert not self.released
        self.released = True


class Shard:
    """One topic of ``head`` numbers. What is read ahead is answered at once, or by `answer`."""

    def __init__(self, head: int = 100) -> None:
        self.top, self.version = head, 1
        self.asked: list[int] = []  # cursors of ordinary diffs
        self.runs: list[tuple[int, int]] = []  # cursors and pages of those ahead
        self.waiting: list[Callable[[], None]] = []
        self.holds = False
        self.gone = False
        self.replies: list[Reply] = []

    async def call(self, shard: int, call: Call[P, R], params: Any, body: bytes) -> Reply:
        await trio.lowlevel.checkpoint()
        asked = msgspec.json.decode(body)
        self.asked.append(asked["from_seq"])
        page, following = self._page(asked["from_seq"], asked["limit"])
        end = difference_end(**self._end(following))
        result = DiffResult(following if following < self.top else None)
        return self._reply(result, difference("t", page, end))

    def ask(
        self,
        shard: int,
        call: Call[P, R],
        params: Any,
        body: bytes,
        then: Callable[[Any], None],
    ) -> None:
        asked = msgspec.json.decode(body)
        self.runs.append((asked["from_seq"], params.page_count))
        answer = self._ahead(asked["from_seq"], asked["limit"], params.page_count)
        if self.holds:
            self.waiting.append(lambda: then(answer))
        else:
            then(answer)

    def flush(self, shard: int) -> None: ...

    def head(self, shard: int, mark: HeadMark) -> int | None:
        return self.top if mark.version == self.version else None

    def _ahead(self, cursor: int, limit: int, pages: int) -> Reply | TopicsError:
        if self.gone:
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
        self.request = cast("Request", type("Asked", (), {"topic": topic, "shard": 0})())

    def body(self) -> bytes:
        return b'{"from_seq":%d,"limit":%d}' % (self.cursor, self.limit)

    async def page(self) -> dict[str, Any]:
        answer: Answer = await self.ahead.diff(self.request, self.body(), time.monotonic_ns())
        page: dict[str, Any] = msgspec.json.decode(answer.body)
        answer.done()
        expected = range(self.cursor + 1, page["next_from_seq"] + 1)
        assert [record["$seq"] for record in page["records"]] == list(expected)
        self.cursor = page["next_from_seq"]
        return page


def released(shard: Shard) -> bool:
    return all(reply.released for reply in shard.replies)


async def test_a_reader_that_reads_on_is_answered_without_the_shard() -> None:
    shard = Shard(1000)
    reader = Reader(ReadAhead(cast("Any", shard)))
    while not (await reader.page())["caught_up"]:
        pass
    assert shard.asked[:2] == [0, 10]
    assert shard.asked[2:] == [990], "the page that ends at the head is the shard's to answer"
    assert [pages for _, pages in shard.runs[:6]] == [1, 2, 4, 8, RUN_PAGES_MAX, RUN_PAGES_MAX]
    assert released(shard)


async def test_one_page_is_not_reading_on() -> None:
    shard = Shard()
    ahead = ReadAhead(cast("Any", shard))
    for cursor in (0, 50, 20, 70, 0):
        reader = Reader(ahead)
        reader.cursor = cursor
        await reader.page()
    assert shard.runs == []


async def test_a_page_has_the_current_head_and_a_stale_page_is_dropped() -> None:
    shard = Shard(1000)
    reader = Reader(ReadAhead(cast("Any", shard)))
    for _ in range(4):
        await reader.page()
    shard.top = 1500
    page = await reader.page()
    assert (page["head_seq"], page["lag"]) == (1500, 1450)
    asked = len(shard.asked)
    shard.version += 1
    await reader.page()
    await reader.page()
    assert len(shard.asked) == asked + 2, "no stale page is used"
    assert released(shard)


async def test_a_faster_reader_waits_for_the_page_that_was_asked_for() -> None:
    shard = Shard()
    reader = Reader(ReadAhead(cast("Any", shard)))
    await reader.page()
    shard.holds = True
    await reader.page()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.page)
            await trio.testing.wait_all_tasks_blocked()
            assert reader.cursor == 20
            shard.waiting.pop()()
    assert (reader.cursor, shard.asked) == (30, [0, 10])


@pytest.mark.parametrize("gone", [True, False])
async def test_without_a_page_the_shard_is_asked_as_usual(gone: bool) -> None:
    shard = Shard(35)
    shard.gone = gone
    reader = Reader(ReadAhead(cast("Any", shard)), limit=15)
    while not (await reader.page())["caught_up"]:
        pass
    assert shard.asked == [0, 15, 30]
    assert released(shard)


async def test_guesses_and_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard(100_000)
    ahead = ReadAhead(cast("Any", shard))
    for limit in range(1, GUESSES_MAX + 100):
        await Reader(ahead, limit).page()
    assert len(ahead._guesses._guesses) == GUESSES_MAX
    readers = [Reader(ahead, limit) for limit in range(1000, 1000 + RUNS_MAX + 4)]
    for reader in readers:
        await reader.page()
        await reader.page()
    assert len(ahead._guesses._runs) == RUNS_MAX == len(shard.runs)
    monkeypatch.setattr(guesses, "STALE_NS", 0)
    late = Reader(ahead, 2000)
    for _ in range(3):
        await late.page()
    assert len(ahead._guesses._runs) == RUNS_MAX
    assert shard.asked[-2:] == [0, 2000], "the stale run gave way"
    assert sum(guess.run is not None for guess in ahead._guesses._guesses.values()) == sum(
        len(run.keys) for run in ahead._guesses._runs
    )


async def test_switched_off_every_page_comes_from_the_shard() -> None:
    shard = Shard(100)
    reader = Reader(ReadAhead(cast("Any", shard), enabled=False))
    for _ in range(10):
        await reader.page()
    assert len(shard.asked) == 10
    assert shard.runs == []
