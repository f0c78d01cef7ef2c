"""An unexpected error in one stream ends that stream and nothing else of the front."""

from __future__ import annotations

import pytest

from tests.front.live.streams_support import BUG, broken, two
from tests.support.live_desk import desk, page, records


async def test_a_page_that_cannot_be_shown_ends_one_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk() as front:
        first, second = await two(front)
        monkeypatch.setattr(first.stream, "page_event", broken)
        await front.page(0, 1)
        assert b'"$seq":1' in second.hear()
        assert first.stream.ended
        assert b'"code":500' in first.hear()
    assert [record.message for record in caplog.records] == [BUG]


async def test_a_stream_that_fails_while_it_catches_up_ends_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk() as front:
        _, second = await two(front)
        third = await front.client(0, topic="u")
        for name in ("page_event", "failure_event"):
            monkeypatch.setattr(third.stream, name, broken)
        await front.answer("feed.open", head_seq=2, earliest_seq=1, epoch=1)
        await front.answer("feed.read", records(0, 2), **page(0, 2), epoch=1)
        assert third.stream.ended
        await front.page(0, 1)
        assert b'"$seq":1' in second.hear()
    assert {record.message for record in caplog.records} == {BUG}
