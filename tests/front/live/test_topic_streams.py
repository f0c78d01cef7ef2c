"""Streams that follow topics: each reader's answers are its own, and an end leaves all feeds."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.live_desk import desk
from topics.errors import Internal


async def test_a_failed_read_of_a_former_reader_does_not_end_the_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as front:
        client = await front.client()
        await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=1)
        await client.follow("t")
        front.shards.refuse("feed.read", Internal("of the first one"))
        await wait_all_tasks_blocked()
        assert b"event: error" not in client.hear()
        assert client.stream.readers.keys() == {"t"}
    assert not caplog.records
