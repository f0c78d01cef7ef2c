"""What a stream says when it takes its place in a feed, without a server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from topics.config import Settings
from topics.engine.access import ANYONE
from topics.formats.watch import Start, View
from topics.front.live import Feed, Live, Reader
from topics.front.watch import Session, WatchStream


class NoShards:
    def listen(self, listener: Any) -> None:
        """Nothing comes."""

    def shard_of(self, topic: str) -> int:
        return 0

    def notify(self, shard: int, name: str, params: dict[str, Any]) -> None:
        """Nobody hears."""

    def flush(self, shard: int) -> None:
        """Nothing waits."""


class Socket:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock


@pytest.mark.parametrize(("seq", "told"), [(7, True), (9, False)])
async def test_only_a_reader_at_the_head_is_told_that_there_is_no_more(seq: int, told: bool) -> None:
    """One that has read past the feed, which has not heard yet of what came since, is not: there may be more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        live: Any = Live(NoShards(), Settings())  # type: ignore[arg-type]
        session = Session("wid", ANYONE, View(), 15.0, {"t": (seq, 1)})
        stream = WatchStream(live, session, Socket(ours))
        reader = Reader(stream, "t", 0, View(), Start(seq, epoch=1))
        feed = Feed(1, 0, "t", View())
        feed.is_open, feed.seq, feed.head_seq, feed.epoch = True, 7, 7, 1
        stream._go_live(reader, feed)
        assert reader.is_live
        assert reader.tailing is told
        try:
            came = theirs.recv(1000)
        except BlockingIOError:
            came = b""
        assert (b'"head_seq":7' in came) is told
