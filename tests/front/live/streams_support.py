"""Helpers for streams that fail or stall alongside streams that do not."""

from __future__ import annotations

from typing import Any, NoReturn

from trio.testing import wait_all_tasks_blocked

from tests.support.live_harness import SEND_BYTES, Client, LiveHarness, page

BUG = "stream failed"


def broken(*_: Any) -> NoReturn:
    raise RuntimeError("a bug")


async def two(front: LiveHarness) -> tuple[Client, Client]:
    """Two clients that are live in one feed."""
    first = await front.client()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    second = await front.client()
    assert first.receive()
    assert second.receive()
    return first, second


LONG = b'{"$seq":1,"data":"%b"}' % (b"x" * 40 * SEND_BYTES)


async def live(front: LiveHarness) -> Client:
    """A client at the head of its feed."""
    client = await front.client()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    assert b"caught-up" in client.receive()
    return client


async def long_page(front: LiveHarness) -> None:
    """Deliver a page with one record that is larger than a socket's send buffer."""
    front.event(0, "feed.page", {"feed": 1, **page(0, 1)}, LONG)
    await wait_all_tasks_blocked()
