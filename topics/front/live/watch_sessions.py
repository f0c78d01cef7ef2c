"""Watch sessions (§7.2): the cursors of a ``wid``, and how a client resumes.

A session keeps a cursor for each topic. Each event has an id that identifies all cursors after the
event. A client that reconnects with an id is rewound to these cursors, and never moved forward.

    an id contains                 the session is rewound with
    a map from topic to cursor     the id itself
    the number of a checkpoint     the moves since that checkpoint, or an older complete map

Without an id, the session is rewound to the data that the last stream's socket did not accept
completely. An id that this session cannot have sent is ignored, so that it cannot hide this data. A
map does not identify the incarnation of a topic, so `EarlierIncarnation` stores which seqs of the
new incarnation were part of ids. Rewinding too far delivers records twice. A rewind must never hide
a record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from topics.engine.access import Principal
from topics.formats.api.watch import Cursor, View, decode_id, encode_checkpoint, encode_id
from topics.front.live.topic_streams import TopicStream

MOVES_MAX = 4096  # number of moves that can be undone exactly
MAPS_MAX = 32  # complete maps for older checkpoints, at intervals of `MOVES_MAX` moves or more


@dataclass(slots=True)
class EarlierIncarnation:
    """The earlier incarnation of a recreated topic. It was delivered up to ``last`` at most."""

    last: int
    epoch: int  # the epoch of this incarnation
    # Seqs of the new incarnation that were part of ids.
    shown: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class WatchSession:
    """The cursors of one watch. ``cursors`` has all topics that it watches or has watched."""

    wid: str
    principal: Principal
    view: View
    heartbeat_s: float
    cursors: dict[str, Cursor]
    deleted: dict[str, int] = field(default_factory=dict)  # deleted topics with their last head_seq
    stream: TopicStream | None = None
    ended_at: float = 0.0  # time at which the last stream ended
    checkpoint: int = 0
    # (checkpoint, topic, cursor of the topic before the move).
    moves: deque[tuple[int, str, Cursor]] = field(default_factory=lambda: deque(maxlen=MOVES_MAX))
    maps: list[tuple[int, dict[str, Cursor]]] = field(default_factory=list)  # ordered by checkpoint
    earlier: dict[str, EarlierIncarnation] = field(default_factory=dict)
    # By topic, the cursors before each move whose data the last stream's socket did not fully
    # accept.
    unsent: dict[str, list[Cursor]] = field(default_factory=dict)
    # True after the session has sent a checkpoint number as an id, because the map was too long.
    has_checkpoints: bool = False

    def id(self) -> bytes:
        """Return the event id of all current cursors."""
        if not self.has_checkpoints:
            packed = encode_id({topic: seq for topic, (seq, _) in self.cursors.items()})
            if packed is not None:
                return packed
            self.has_checkpoints = True
        return encode_checkpoint(self.checkpoint)

    def move(self, topic: str, seq: int, epoch: int) -> None:
        """Move the cursor of a topic to ``seq``."""
        if self.has_checkpoints:
            self._note_move(topic)
        # The topic was recreated. From now on, seqs in ids may belong to either incarnation.
        last, before = self.cursors[topic]
        if epoch != before:
            known = self.earlier.get(topic)
            self.earlier[topic] = EarlierIncarnation(
                max(last, known.last) if known else last, before
            )
        if topic in self.earlier:
            self._note_shown(topic, seq)
        self.cursors[topic] = seq, epoch

    def resume(self, last_event_id: bytes) -> None:
        """Rewind for a client that reconnects.

        Data that the socket did not accept completely is sent again, unless the client's id
        confirms it.
        """
        if last_event_id:
            self.rewind(last_event_id)
        for topic, (cursor, *_) in self.unsent.items():
            if self.has_checkpoints:
                self._note_move(topic)
            # The cursor is back in the earlier incarnation, so seqs are no longer ambiguous.
            if cursor[1] != self.cursors[topic][1]:
                self.earlier.pop(topic, None)
            self.cursors[topic] = cursor
        self.unsent = {}

    def rewind(self, last_event_id: bytes) -> None:
        """Rewind to the cursors of a client's event id. Never move forward."""
        known = decode_id(last_event_id)
        if isinstance(known, dict):
            back = self._cursors_of_map(known)
            seen = {topic for topic, _ in back}
            self.unsent = {topic: one for topic, one in self.unsent.items() if topic not in seen}
        elif self.has_checkpoints and known <= self.checkpoint:
            back = self._cursors_at_checkpoint(known)
            self.unsent = {}
        else:
            return
        # Within one incarnation, a cursor is only moved back. Seqs of different incarnations are
        # not comparable.
        for topic, (seq, epoch) in back:
            at, now = self.cursors[topic]
            self.cursors[topic] = (min(at, seq) if epoch == now else seq), epoch

    def _cursors_of_map(self, known: dict[str, int]) -> list[tuple[str, Cursor]]:
        """Return those cursors in ``known`` that this session could have sent."""
        found = []
        for topic, seq in known.items():
            if topic in self.cursors and seq >= 0:
                cursor = self._cursor_at(topic, seq)
                if self._may_have_sent(topic, cursor):
                    found.append((topic, cursor))
        return found

    def _may_have_sent(self, topic: str, cursor: Cursor) -> bool:
        """Return whether an id of this session may have contained the cursor.

        Every cursor below the end of the completely sent data is accepted. Above this end, only
        cursors that the reader has had are accepted.
        """
        now, unsent = self.cursors[topic], self.unsent.get(topic)
        if cursor == now or (unsent and cursor in unsent):
            return True
        # Compare with the cursor before the first data that was not sent completely.
        first = unsent[0] if unsent else now
        return cursor[0] < first[0] if cursor[1] == first[1] else first[1] == now[1]

    def _cursor_at(self, topic: str, seq: int) -> Cursor:
        """Return the cursor to which a seq in an id refers.

        It belongs to the earlier incarnation, unless the seq was part of an id for the new one.
        """
        earlier = self.earlier.get(topic)
        is_old = earlier is not None and seq <= earlier.last and seq not in earlier.shown
        return seq, earlier.epoch if earlier and is_old else self.cursors[topic][1]

    def _cursors_at_checkpoint(self, known: int) -> list[tuple[str, Cursor]]:
        """Return the cursors to rewind to, in the order in which to apply them.

        If a topic occurs several times, its last cursor is the final one.
        """
        # The moves since this checkpoint are no longer stored completely: use an older map.
        if self.moves and known + 1 < self.moves[0][0]:
            maps = (cursors for checkpoint, cursors in reversed(self.maps) if checkpoint <= known)
            return list(next(maps).items())
        return [
            (topic, cursor)
            for checkpoint, topic, cursor in reversed(self.moves)
            if checkpoint > known
        ]

    def _note_move(self, topic: str) -> None:
        """Store the cursor before a move, and from time to time a map of all cursors."""
        if self.checkpoint % MOVES_MAX == 0:
            # Drop every second map, but keep the first one for the oldest checkpoints.
            if len(self.maps) == MAPS_MAX:
                del self.maps[1::2]
            self.maps.append((self.checkpoint, dict(self.cursors)))
        self.checkpoint += 1
        self.moves.append((self.checkpoint, topic, self.cursors[topic]))

    def _note_shown(self, topic: str, seq: int) -> None:
        """Store a seq of the new incarnation that is part of an id."""
        shown = self.earlier[topic].shown
        shown.add(seq)
        # After this many moves, the client has received the end of the earlier incarnation.
        if len(shown) > MOVES_MAX:
            del self.earlier[topic]
