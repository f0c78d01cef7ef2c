"""A client with a small socket that holds the server to where it stands in each topic."""

from __future__ import annotations

from typing import Any

import trio

from tests.support.live_desk import Socket, socket_pair
from tests.support.sse import CAUGHT_UP, DELETED, ERROR, RECORD, TOMBSTONE, Decoder, SseEvent
from topics.front.live.watch_sessions import WatchSession
from topics.front.live.watches import Watches


class Client:
    """It knows where it stands in each topic, and holds the server to it."""

    def __init__(self, watches: Watches, nursery: trio.Nursery, session: WatchSession) -> None:
        self._watches, self._nursery, self.session = watches, nursery, session
        self.at: dict[str, tuple[int, int | None]] = dict(session.cursors)
        self.gone: set[str] = set()
        self.caught_up: set[str] = set()  # in this stream
        self.last_id: str | None = None
        self._scope = trio.CancelScope()

    def come(self, *, with_id: bool) -> None:
        ours, self.sock = socket_pair()
        self.caught_up.clear()
        self._decoder = Decoder()
        last_id = (self.last_id or "").encode() if with_id else b""
        self._scope = trio.CancelScope()
        self._nursery.start_soon(self._stream, ours, last_id, self._scope)

    async def _stream(self, ours: Any, last_id: bytes, scope: trio.CancelScope) -> None:
        with scope, ours:
            connection: Any = Socket(ours)
            await self._watches.stream(self.session, connection, last_id)

    def leave(self) -> None:
        self.sock.close()

    def read(self, size: int) -> bool:
        """Whether something came."""
        try:
            piece = self.sock.recv(size)
        except BlockingIOError:
            return False
        for event in self._decoder.feed(piece):
            if event.data is not None:
                self._take(event)
        return bool(piece)

    def _take(self, event: SseEvent) -> None:
        body = event.json()
        if event.event == ERROR and body["code"] == 429:  # it is paced, and goes on
            assert body["topics"]
            return
        name = body["topic"]
        if name in self.gone and event.event == DELETED:
            return
        assert name not in self.gone, f"after the end of {name}: {body}"
        at, epoch = self.at[name]
        if epoch is None or at == 0:
            # Recreated, or nothing of it has come yet: what comes first says where it begins.
            epoch = None
            at = (
                body["records"][0]["$seq"] - 1
                if "records" in body
                else body.get("gap_from", at + 1) - 1
            )
            at = body["head_seq"] if event.event == CAUGHT_UP else at
        if event.event == RECORD:
            for record in body["records"]:
                epoch = record["epoch"] if epoch is None else epoch
                assert (record["$seq"], record["epoch"]) == (at + 1, epoch), (
                    f"{name} behind {at, epoch}: {str(body)[:200]}"
                )
                at += 1
            assert body["to_seq"] == at
        elif event.event == TOMBSTONE and body["reason"] == "recreated":
            self.caught_up.discard(name)
            at, epoch = 0, None  # the next record says it
        elif event.event == TOMBSTONE:
            # A stream without an id tells it again when it had come and the records of the same
            # write had not; so does one with an id behind that, as ids lead back only.
            told_twice = body["gap_from"] <= at <= body["gap_to"]
            assert body["gap_from"] == at + 1 or told_twice, f"behind {at}: {body}"
            at = body["gap_to"]
        elif event.event == CAUGHT_UP:
            assert at == body["head_seq"], f"at {at}: {body}"
            self.caught_up.add(name)
        else:
            assert event.event == DELETED, event
            self.gone.add(name)
        self.at[name] = at, epoch
        # The cursor of a topic that is gone leads nowhere: it may lie before a tombstone that came.
        assert event.event == DELETED or event.cursor[name] == at, (
            f"{event} leads elsewhere than {at}"
        )
        self.last_id = event.id
