"""Watches (§7.1): the watch sessions of a front, by ``wid``.

    POST /v0/watch --create--> idle --GET, open--> streaming --either side closes--> idle
                                 '--SESSION_TTL_S without a stream--> removed

A second GET takes the session over: its stream replaces the first one, which ends with an error
event.
"""

from __future__ import annotations

import secrets
import time
from base64 import urlsafe_b64encode
from sys import intern
from typing import Any

from topics.engine.access import ANYONE, Principal
from topics.errors import NotAcceptable, NotFound, TopicNotFound, Unauthorized
from topics.formats.api.watch import Cursor, Start, WatchRequest
from topics.front.authorization import authorize
from topics.front.http.connection import Connection
from topics.front.live.live import Live
from topics.front.live.subscriptions import TopicHead, begin_at, heads_of
from topics.front.live.watch_sessions import WatchSession
from topics.front.live.watch_streams import TAKEN_OVER, WatchStream
from topics.front.media import accepts_events

SESSION_TTL_S = 300.0
WID_BYTES = 16


class Watches:
    """The watch sessions of a front."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self._sessions: dict[str, WatchSession] = {}
        self._idle: dict[str, WatchSession] = {}  # sessions without a stream, ordered by `ended_at`

    async def create(
        self, asked: WatchRequest, principal: Principal, *, lenient: bool
    ) -> dict[str, Any]:
        """Create a session for `POST /v0/watch`. Return the members of the response.

        If ``lenient`` is true, skip topics that do not exist. Raise `Forbidden`, `TopicNotFound`,
        `Throttled`, `NotReady` or `Unauthorized`.
        """
        self._collect()
        heads = await self._heads(asked, principal)
        unknown = asked.starts.keys() - heads.keys()
        if unknown and not lenient:
            raise TopicNotFound(min(unknown))
        self.live.slots.watch_sessions.acquire(principal)
        begun = {topic: begin_at(asked.starts[topic], head) for topic, head in heads.items()}
        # Intern the names, because they are long and many sessions have the same ones.
        cursors = {intern(name): (start.from_seq, start.epoch) for name, start in begun.items()}
        wid = "wid_" + urlsafe_b64encode(secrets.token_bytes(WID_BYTES)).rstrip(b"=").decode()
        session = WatchSession(wid, principal, asked.view, asked.heartbeat_ms / 1000, cursors)
        self._sessions[wid] = session
        self._note_idle(session)
        return {
            "wid": wid,
            "stream_url": f"/v0/watch/{wid}",
            "session_ttl_ms": int(SESSION_TTL_S * 1000),
            "topics": {topic: start.members() for topic, start in begun.items()},
        }

    async def _heads(self, asked: WatchRequest, principal: Principal) -> dict[str, TopicHead]:
        """Return the heads of the topics that exist.

        Raise `Forbidden`, `NotReady` or `Unauthorized`.
        """
        for topic in asked.starts:
            authorize(principal, None, topic)
        heads = await heads_of(self.live.shards, asked.starts)
        self.live.keys.check(principal)  # the keys may have changed during the wait
        return heads

    async def cursors(
        self, asked: WatchRequest, principal: Principal, known: dict[str, Cursor]
    ) -> tuple[dict[str, Cursor], set[str]]:
        """Return the start cursors of `GET /v0/watch`, and the topics in the client's id that were
        deleted.

        ``known`` contains the cursors of the client's id. Raise `Forbidden`, `TopicNotFound`,
        `NotReady` or `Unauthorized`.
        """
        heads = await self._heads(asked, principal)
        gone = {topic for topic in asked.starts if topic not in heads}
        if unknown := gone - known.keys():
            raise TopicNotFound(min(unknown))
        begun = {topic: begin_at(asked.starts[topic], head)[:2] for topic, head in heads.items()}
        return {topic: known.get(topic) or begun[topic] for topic in asked.starts}, gone

    def open(self, wid: str, principal: Principal, accept: bytes) -> WatchSession:
        """Return the session of a GET.

        Raise `NotFound`, `Unauthorized`, `NotAcceptable` or `Throttled`.
        """
        self._collect()
        session = self._sessions.get(wid)
        if session is None:
            raise NotFound("no such watch session: it expired or never existed")
        if session.principal is not ANYONE and session.principal.digest != principal.digest:
            raise Unauthorized("the session belongs to another key")
        if not accepts_events(accept):
            raise NotAcceptable("this route only returns text/event-stream, which Accept excludes")
        self.live.check_limits(principal, leaving=session.stream)
        if session.stream is None:
            # Restart the idle time, because a slow client may receive the head of its stream late.
            self._note_idle(session)
        return session

    async def stream(
        self, session: WatchSession, connection: Connection, last_event_id: bytes
    ) -> None:
        """Send the topics of the session until either side closes the stream."""
        if session.stream is not None:
            session.stream.fail(TAKEN_OVER, "another stream has taken over the session")
        session.resume(last_event_id)
        stream = session.stream = WatchStream(self.live, session, connection)
        self._idle.pop(session.wid, None)
        try:
            stream.begin()
            stream.repeat_deleted()
            for topic, (seq, epoch) in session.cursors.items():
                if topic not in session.deleted:
                    stream.add(topic, session.view, Start(seq, epoch=epoch or None))
            stream.catch_up()
            await stream.until_ended()
        finally:
            stream.end()
            connection.sent_bytes += stream.outbox.sent_bytes
            if session.stream is stream:
                session.stream = None
                if session.wid in self._sessions:
                    self._note_idle(session)

    def end_refused(self) -> None:
        """Remove the sessions whose keys were removed or whose rights have changed.

        `Live.end_refused` ends their streams.
        """
        for session in [*self._sessions.values()]:
            if self.live.keys.refusal(session.principal) is not None:
                self._remove(session)

    def _note_idle(self, session: WatchSession) -> None:
        """Mark a session as idle and put it last in the order of removal."""
        session.ended_at = time.monotonic()
        self._idle.pop(session.wid, None)
        self._idle[session.wid] = session

    def _collect(self) -> None:
        """Remove sessions that no stream has used for `SESSION_TTL_S`."""
        before = time.monotonic() - SESSION_TTL_S
        while self._idle and (session := next(iter(self._idle.values()))).ended_at < before:
            self._remove(session)

    def _remove(self, session: WatchSession) -> None:
        """Remove a session, and release its slot."""
        del self._sessions[session.wid]
        self._idle.pop(session.wid, None)
        self.live.slots.watch_sessions.release(session.principal)
