"""Watch (§7): sessions, and the SSE streams that are opened on them."""

from __future__ import annotations

import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import (
    Forbidden,
    NotAcceptable,
    NotFound,
    Throttled,
    TopicNotFound,
    TopicsError,
    Unauthorized,
)
from topics.formats.api.fields import list_members
from topics.formats.api.watch import (
    MAP_TOPICS,
    Start,
    View,
    Watch,
    decode_id,
    encode_checkpoint,
    encode_id,
)
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import TOPIC_HEADS, TopicHeadsParams
from topics.front.errors import status_of
from topics.front.http.connections import Connection
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.streams import Reader, Stream

SESSION_TTL_S = 300.0
MOVES_KEPT = 4096  # so many frames can be taken back exactly; for older checkpoints there are
MAPS_KEPT = 32  # whole maps, of every MOVES_KEPT frames or less often: going back too far shows records twice and hides none
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": hb\n\n"
PARAMETERS_MAX = 16  # of one range of an Accept field
_NEW_LINE = re.compile(rb"\r\n|\r|\n")
_EVENT_STREAM = (b"text/event-stream", b"text/*", b"*/*")

Cursor = tuple[int, int]
"""Seq and epoch."""


@dataclass(slots=True)
class Earlier:
    """Of a topic that was made again. The old one was shown up to ``last`` or less; an id does not
    say which of the two it means.
    """

    last: int
    epoch: int
    shown: set[int] = field(default_factory=set)  # what ids have said of the new one


@dataclass(slots=True, eq=False)
class WatchSession:
    """What a ``wid`` stands for. ``cursors``: by topic, of all topics that it watches or has
    watched.
    """

    wid: str
    principal: Principal
    view: View
    heartbeat_s: float
    cursors: dict[str, Cursor]
    deleted: dict[str, int] = field(
        default_factory=dict
    )  # topics that have ended, and their last heads
    stream: WatchStream | None = None
    left_at: float = 0.0  # when its last stream ended
    checkpoint: int = 0
    moves: deque[tuple[int, str, Cursor]] = field(
        default_factory=lambda: deque(maxlen=MOVES_KEPT)
    )  # checkpoint, topic, cursor before it
    maps: list[tuple[int, dict[str, Cursor]]] = field(default_factory=list)  # by rising checkpoint
    earlier: dict[str, Earlier] = field(default_factory=dict)
    unsent: dict[str, Cursor] = field(
        default_factory=dict
    )  # where topics stood before what the last stream's socket did not take whole

    def move(self, topic: str, seq: int, epoch: int) -> None:
        """The reader of a topic stands at ``seq`` now."""
        self._note_move(topic)
        last, before = self.cursors[topic]
        if epoch != before:
            known = self.earlier.get(topic)
            self.earlier[topic] = Earlier(max(last, known.last) if known else last, before)
        if topic in self.earlier:
            self._note_shown(topic, seq)
        self.cursors[topic] = seq, epoch

    def resume(self, last_event_id: bytes) -> None:
        """A client is back. What it does not say that it has seen, and was not sent whole, is to be
        shown again.
        """
        if last_event_id:
            self.rewind(last_event_id)
        for topic, cursor in self.unsent.items():
            self._note_move(topic)
            if cursor[1] != self.cursors[topic][1]:
                self.earlier.pop(topic, None)
            self.cursors[topic] = cursor
        self.unsent = {}

    def _note_move(self, topic: str) -> None:
        if len(self.cursors) > MAP_TOPICS:
            if self.checkpoint % MOVES_KEPT == 0:
                self._keep_map()
            self.checkpoint += 1
            self.moves.append((self.checkpoint, topic, self.cursors[topic]))

    def _note_shown(self, topic: str, seq: int) -> None:
        shown = self.earlier[topic].shown
        shown.add(seq)
        if len(shown) > MOVES_KEPT:  # whoever has come so far has left the old one behind
            del self.earlier[topic]

    def _keep_map(self) -> None:
        if len(self.maps) == MAPS_KEPT:
            del self.maps[1::2]
        self.maps.append((self.checkpoint, dict(self.cursors)))

    def id(self) -> bytes:
        """The composite cursor of now."""
        if len(self.cursors) > MAP_TOPICS:
            return encode_checkpoint(self.checkpoint)
        return encode_id({topic: seq for topic, (seq, _) in self.cursors.items()})

    def rewind(self, last_event_id: bytes) -> None:
        """Go back to what a client says that it has seen; never forward."""
        known = decode_id(last_event_id)
        if isinstance(known, dict):
            back = [
                (topic, self._cursor_at(topic, seq))
                for topic, seq in known.items()
                if topic in self.cursors and seq >= 0
            ]
        elif self.moves and known + 1 < self.moves[0][0]:
            back = list(
                next(
                    cursors for checkpoint, cursors in reversed(self.maps) if checkpoint <= known
                ).items()
            )
        else:
            back = [
                (topic, cursor)
                for checkpoint, topic, cursor in reversed(self.moves)
                if checkpoint > known
            ]
        for topic, (seq, epoch) in back:
            at, now = self.cursors[topic]
            self.cursors[topic] = (min(at, seq) if epoch == now else seq), epoch
        self.unsent = {
            topic: cursor
            for topic, cursor in self.unsent.items()
            if isinstance(known, dict) and topic not in known
        }

    def _cursor_at(self, topic: str, seq: int) -> Cursor:
        """What an id means by a seq: the old topic's, if no id has had it for the new one."""
        earlier = self.earlier.get(topic)
        is_old = earlier is not None and seq <= earlier.last and seq not in earlier.shown
        return seq, earlier.epoch if earlier and is_old else self.cursors[topic][1]


class WatchStream(Stream):
    """One GET of a session."""

    def __init__(self, live: Live, session: WatchSession, connection: Connection) -> None:
        super().__init__(live, connection.sock, session.principal, session.heartbeat_s)
        self.session = session
        self._alone = len(session.cursors) == 1  # its ids are those of every stream of that topic
        self._before: dict[
            str, Cursor
        ] = {}  # where its topics stood before what the socket has not taken whole

    def shown_page(self, reader: Reader, page: FeedPage) -> bytes:  # noqa: ARG002 - the session stands where the reader does
        """``event: record``."""
        if self._alone:
            shown = page.shown.get(WatchStream)
            if shown is None:
                shown = page.shown[WatchStream] = b"".join(
                    (b"id: ", self.session.id(), b"\n", _record_event(page))
                )
            return shown
        return b"".join((b"id: ", self.session.id(), b"\n", _record_event(page)))

    def shown_tombstone(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """``event: tombstone``."""
        return self._event(b"tombstone", {"topic": reader.topic, **tombstone})

    def shown_caught_up(self, reader: Reader, head_seq: int) -> bytes:
        """``event: caught-up``."""
        return self._event(b"caught-up", {"topic": reader.topic, "head_seq": head_seq})

    def shown_deleted(self, reader: Reader, head_seq: int) -> bytes:
        """``event: topic-deleted``."""
        self.session.deleted[reader.topic] = head_seq
        return self._end_of(reader.topic, head_seq)

    def write_ends(self) -> None:
        """Tell again which topics have ended: an id does not say whether the client knows."""
        if self.session.deleted:
            self.write(
                b"".join(
                    [
                        self._end_of(topic, head_seq)
                        for topic, head_seq in self.session.deleted.items()
                    ]
                )
            )

    def _end_of(self, topic: str, head_seq: int) -> bytes:
        return self._event(
            b"topic-deleted", {"topic": topic, "head_seq": head_seq, "reason": "deleted"}
        )

    def shown_failure(self, code: int, error: str) -> bytes:
        """``event: error``."""
        return b"event: error\ndata: %b\n\n" % json_bytes({"code": code, "error": error})

    def shown_trouble(self, reader: Reader, failure: TopicsError) -> bytes:
        """``event: error`` about one topic."""
        told = {"code": status_of(failure), "error": failure.message, "topics": [reader.topic]}
        return b"event: error\ndata: %b\n\n" % json_bytes(told)

    def shown_heartbeat(self) -> bytes:
        """A comment."""
        return HEARTBEAT

    def moved(self, reader: Reader) -> None:
        """The session's cursor goes with its own stream only."""
        if self.session.stream is self:
            self._before.setdefault(reader.topic, self.session.cursors[reader.topic])
            self.session.move(reader.topic, reader.seq, reader.epoch or 0)

    def sent_whole(self) -> None:
        """What was shown is the client's."""
        if self._before:
            self._before.clear()

    def end(self) -> None:
        """What the socket has not taken whole was not shown: the session's next stream shows it,
        with or without an id.
        """
        if not self.ended and self.session.stream is self:
            self.session.unsent = self._before
        super().end()

    def _event(self, name: bytes, data: dict[str, Any]) -> bytes:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (self.session.id(), name, json_bytes(data))


def _record_event(page: FeedPage) -> bytes:
    shown = page.shown.get("record")
    if shown is None:
        data = b'{"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (
            page.topic.encode(), page.body, page.from_seq, page.to_seq, page.head_seq,
        )  # fmt: skip
        if (
            b"\n" in data or b"\r" in data
        ):  # white space between JSON tokens, as it was sent: there it may also be on lines of its own
            data = _NEW_LINE.sub(b"\ndata: ", data)
        shown = page.shown["record"] = b"event: record\ndata: %b\n\n" % data
    return shown


class Watches:
    """The watch sessions of a front."""

    def __init__(self, settings: Settings, live: Live) -> None:
        self._settings, self.live = settings, live
        self._sessions: dict[str, WatchSession] = {}

    async def create(self, asked: Watch, principal: Principal, *, lenient: bool) -> dict[str, Any]:
        """`POST /v0/watch`: the members of the answer. Raises `Forbidden`, `TopicNotFound`,
        `Throttled`, `NotReady`.
        """
        if not all(map(principal.covers, asked.starts)):
            raise Forbidden("a name is outside the key's prefixes")
        self._collect()
        heads = await heads_of(self.live, asked.starts)
        unknown = asked.starts.keys() - heads.keys()
        if unknown and not lenient:
            raise TopicNotFound(min(unknown))
        most = self._settings.max_watch_sessions
        if most and len(self._sessions) >= most:
            raise Throttled(
                "there are too many watch sessions",
                limit="max_watch_sessions",
                max=most,
                retry_after_ms=1000,
            )
        wid = "wid_" + urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        cursors, topics = {}, {}
        for topic, (head_seq, earliest_seq, epoch) in heads.items():
            start = asked.starts[topic]
            from_seq = head_seq if start.tail else start.from_seq
            cursors[topic] = from_seq, _known_epoch(start, from_seq, head_seq, epoch)
            topics[topic] = {
                "from_seq": from_seq,
                "head_seq": head_seq,
                "earliest_seq": earliest_seq,
                "epoch": epoch,
            }
        self._sessions[wid] = WatchSession(
            wid, principal, asked.view, asked.heartbeat_ms / 1000, cursors, left_at=time.monotonic()
        )  # fmt: skip
        ttl_ms = int(SESSION_TTL_S * 1000)
        return {
            "wid": wid,
            "stream_url": f"/v0/watch/{wid}",
            "session_ttl_ms": ttl_ms,
            "topics": topics,
        }

    def open(self, wid: str, principal: Principal, accept: bytes) -> WatchSession:
        """The session that a GET asks for. Raises `NotFound`, `Unauthorized`, `NotAcceptable`."""
        self._collect()
        session = self._sessions.get(wid)
        if session is None:
            raise NotFound("no such watch session: it was collected, or never was")
        if session.principal is not ANYONE and session.principal.digest != principal.digest:
            raise Unauthorized("the session belongs to another key")
        if not _accepts_events(accept):
            raise NotAcceptable("the answer is text/event-stream")
        self.live.check_room(principal, leaving=session.stream)
        return session

    async def stream(
        self, session: WatchSession, connection: Connection, last_event_id: bytes
    ) -> None:
        """Show the session's topics, until either side ends it."""
        if session.stream is not None:
            session.stream.fail(409, "another stream has taken the session over")
        session.resume(last_event_id)
        stream = session.stream = WatchStream(self.live, session, connection)
        try:
            stream.begin()
            stream.write(RETRY)
            stream.write_ends()
            for topic, (seq, epoch) in session.cursors.items():
                if topic not in session.deleted:
                    stream.add(topic, session.view, Start(seq, epoch=epoch or None))
            stream.catch_up()
            await stream.until_ended()
        finally:
            stream.end()
            if session.stream is stream:
                session.stream = None
                session.left_at = time.monotonic()

    def _collect(self) -> None:
        """Forget sessions that nobody has used for long."""
        before = time.monotonic() - SESSION_TTL_S
        for wid in [
            wid
            for wid, session in self._sessions.items()
            if session.stream is None and session.left_at < before
        ]:
            del self._sessions[wid]


def _known_epoch(start: Start, from_seq: int, head_seq: int, epoch: int) -> int:
    """The incarnation that a cursor belongs to; 0 when it cannot belong to the one of now."""
    if start.epoch is not None:
        return start.epoch
    return epoch if from_seq <= head_seq else 0


async def heads_of(live: Live, topics: Iterable[str]) -> dict[str, Sequence[int]]:
    """Head, earliest seq and epoch of those that exist, in the order of ``topics``. Raises
    `NotReady`.
    """
    by_shard: dict[int, list[str]] = {}
    for topic in topics:
        by_shard.setdefault(live.backend.shard_of(topic), []).append(topic)
    found: dict[str, Sequence[int]] = {}

    for shard, names in by_shard.items():
        reply = await live.backend.call(shard, TOPIC_HEADS, TopicHeadsParams(names))
        found.update(reply.result.heads)
        reply.release()
    return {topic: found[topic] for topic in topics if topic in found}


def _accepts_events(accept: bytes) -> bool:
    """Whether an Accept value allows an event stream; an absent one allows everything. The most
    specific range counts.
    """
    weights = {}
    for part in list_members(accept):
        media, *parameters = [piece.strip() for piece in part.split(b";", PARAMETERS_MAX)]
        weights[media] = next(
            (piece[2:].strip(b"0.") != b"" for piece in parameters if piece.startswith(b"q=")), True
        )
    return not accept.strip() or next(
        (weights[media] for media in _EVENT_STREAM if media in weights), False
    )
