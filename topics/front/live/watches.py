"""Watches (§7.1): the watch sessions of a front, by ``wid``.

    POST /v0/watch --create--> idle --GET, open--> streaming --either side ends--> idle
                                 '--SESSION_TTL_S without a stream--> collected

A second GET takes the session over: its stream replaces the first one, which is told so.
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
        self._idle: dict[str, WatchSession] = {}  # those without a stream, by rising `left_at`

    async def create(
        self, asked: WatchRequest, principal: Principal, *, lenient: bool
    ) -> dict[str, Any]:
        """`POST /v0/watch`: the members of the answer. Raises `Forbidden`, `TopicNotFound`,
        `Throttled`, `NotReady`, `Unauthorized`.
        """
        self._collect()
        heads = await self._heads(asked, principal)
        unknown = asked.starts.keys() - heads.keys()
        if unknown and not lenient:
            raise TopicNotFound(min(unknown))
        self.live.slots.watch_sessions.acquire(principal)
        begun = {topic: begin_at(asked.starts[topic], head) for topic, head in heads.items()}
        # Names are long, and many sessions have the same.
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
        """The heads of those topics that are there. Raises `Forbidden`, `NotReady`,
        `Unauthorized`.
        """
        for topic in asked.starts:
            authorize(principal, None, topic)
        heads = await heads_of(self.live.shards, asked.starts)
        self.live.keys.check(principal)  # it may have changed while this waited
        return heads

    async def cursors(
        self, asked: WatchRequest, principal: Principal, known: dict[str, Cursor]
    ) -> tuple[dict[str, Cursor], set[str]]:
        """`GET /v0/watch`: where its stream begins in each topic, and which topics that the client
        knows are gone. Raises `Forbidden`, `TopicNotFound`, `NotReady`, `Unauthorized`.
        """
        heads = await self._heads(asked, principal)
        gone = {topic for topic in asked.starts if topic not in heads}
        if unknown := gone - known.keys():
            raise TopicNotFound(min(unknown))
        begun = {topic: begin_at(asked.starts[topic], head)[:2] for topic, head in heads.items()}
        return {topic: known.get(topic) or begun[topic] for topic in asked.starts}, gone

    def open(self, wid: str, principal: Principal, accept: bytes) -> WatchSession:
        """The session that a GET asks for. Raises `NotFound`, `Unauthorized`, `NotAcceptable`,
        `Throttled`.
        """
        self._collect()
        session = self._sessions.get(wid)
        if session is None:
            raise NotFound("no such watch session: it was collected, or never was")
        if session.principal is not ANYONE and session.principal.digest != principal.digest:
            raise Unauthorized("the session belongs to another key")
        if not accepts_events(accept):
            raise NotAcceptable("the answer is text/event-stream")
        self.live.check_room(principal, leaving=session.stream)
        if session.stream is None:
            self._note_idle(session)  # the client may take the head of its stream late
        return session

    async def stream(
        self, session: WatchSession, connection: Connection, last_event_id: bytes
    ) -> None:
        """Show the session's topics, until either side ends it."""
        if session.stream is not None:
            session.stream.fail(TAKEN_OVER, "another stream has taken the session over")
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
        """The keys have changed: forget the sessions whose keys are gone or have other rights.
        `Live.end_refused` ends their streams.
        """
        for session in [*self._sessions.values()]:
            if self.live.keys.refusal(session.principal) is not None:
                self._forget(session)

    def _note_idle(self, session: WatchSession) -> None:
        session.left_at = time.monotonic()
        self._idle.pop(session.wid, None)
        self._idle[session.wid] = session

    def _collect(self) -> None:
        """Forget sessions that no stream has used for SESSION_TTL_S."""
        before = time.monotonic() - SESSION_TTL_S
        while self._idle and (session := next(iter(self._idle.values()))).left_at < before:
            self._forget(session)

    def _forget(self, session: WatchSession) -> None:
        del self._sessions[session.wid]
        self._idle.pop(session.wid, None)
        self.live.slots.watch_sessions.release(session.principal)
