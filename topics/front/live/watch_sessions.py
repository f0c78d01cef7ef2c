"""Watch sessions (§7.2): what a ``wid`` stands for, and how a client resumes.

A session keeps a cursor for each topic. Every event carries an id that says where all cursors stood
behind it; a client that comes back with an id is taken back to there, never forward.

    an id holds                    taken back with
    the map from topic to cursor   the id itself
    the number of a checkpoint     the moves since then, or an older whole map

Without an id, the session takes back what the last stream's socket did not take whole. An id that
this session cannot have sent is none: it must not hide that. A map does not say which incarnation
of a topic it means, so `Earlier` remembers what ids have said of the new one. Going back too far
shows records twice; it must never hide one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from topics.engine.access import Principal
from topics.formats.api.watch import Cursor, View, decode_id, encode_checkpoint, encode_id
from topics.front.live.topic_streams import TopicStream

MOVES_KEPT = 4096  # so many moves can be taken back exactly
MAPS_KEPT = 32  # whole maps, one every MOVES_KEPT moves or less often, for older checkpoints


@dataclass(slots=True)
class Earlier:
    """The earlier incarnation of a recreated topic. It was shown up to ``last`` or less."""

    last: int
    epoch: int
    shown: set[int] = field(default_factory=set)  # seqs of the new one that ids have carried


@dataclass(slots=True, eq=False)
class WatchSession:
    """The cursors of one watch; ``cursors`` has all topics that it watches or has watched."""

    wid: str
    principal: Principal
    view: View
    heartbeat_s: float
    cursors: dict[str, Cursor]
    deleted: dict[str, int] = field(default_factory=dict)  # deleted topics, with their last heads
    stream: TopicStream | None = None
    left_at: float = 0.0  # when its last stream ended
    checkpoint: int = 0
    # Checkpoint, topic, and the topic's cursor before the move.
    moves: deque[tuple[int, str, Cursor]] = field(default_factory=lambda: deque(maxlen=MOVES_KEPT))
    maps: list[tuple[int, dict[str, Cursor]]] = field(default_factory=list)  # by rising checkpoint
    earlier: dict[str, Earlier] = field(default_factory=dict)
    # Cursors before the moves that the last stream's socket did not take whole.
    unsent: dict[str, list[Cursor]] = field(default_factory=dict)
    has_checkpoints: bool = False  # from the first id on that is one

    def id(self) -> bytes:
        """The event id of now: all cursors."""
        if not self.has_checkpoints:
            packed = encode_id({topic: seq for topic, (seq, _) in self.cursors.items()})
            if packed is not None:
                return packed
            self.has_checkpoints = True
        return encode_checkpoint(self.checkpoint)

    def move(self, topic: str, seq: int, epoch: int) -> None:
        """The reader of a topic stands at ``seq`` now."""
        if self.has_checkpoints:
            self._note_move(topic)
        last, before = self.cursors[topic]
        if epoch != before:
            known = self.earlier.get(topic)
            self.earlier[topic] = Earlier(max(last, known.last) if known else last, before)
        if topic in self.earlier:
            self._note_shown(topic, seq)
        self.cursors[topic] = seq, epoch

    def resume(self, last_event_id: bytes) -> None:
        """A client is back. It is shown again what it was not sent whole, unless its id says that
        it has seen it.
        """
        if last_event_id:
            self.rewind(last_event_id)
        for topic, (cursor, *_) in self.unsent.items():
            if self.has_checkpoints:
                self._note_move(topic)
            if cursor[1] != self.cursors[topic][1]:
                self.earlier.pop(topic, None)
            self.cursors[topic] = cursor
        self.unsent = {}

    def rewind(self, last_event_id: bytes) -> None:
        """Go back to what a client says that it has seen; never forward."""
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
        for topic, (seq, epoch) in back:
            at, now = self.cursors[topic]
            self.cursors[topic] = (min(at, seq) if epoch == now else seq), epoch

    def _cursors_of_map(self, known: dict[str, int]) -> list[tuple[str, Cursor]]:
        found = []
        for topic, seq in known.items():
            if topic in self.cursors and seq >= 0:
                cursor = self._cursor_at(topic, seq)
                if self._may_have_told(topic, cursor):
                    found.append((topic, cursor))
        return found

    def _may_have_told(self, topic: str, cursor: Cursor) -> bool:
        """Whether an id of this session may have held the cursor, so far as it matters: behind what
        was surely sent, only those count that the reader stood at.
        """
        now, unsent = self.cursors[topic], self.unsent.get(topic)
        if cursor == now or (unsent and cursor in unsent):
            return True
        first = unsent[0] if unsent else now
        return cursor[0] < first[0] if cursor[1] == first[1] else first[1] == now[1]

    def _cursor_at(self, topic: str, seq: int) -> Cursor:
        """What an id means by a seq: the earlier topic's, if no id carried it for the new one."""
        earlier = self.earlier.get(topic)
        is_old = earlier is not None and seq <= earlier.last and seq not in earlier.shown
        return seq, earlier.epoch if earlier and is_old else self.cursors[topic][1]

    def _cursors_at_checkpoint(self, known: int) -> list[tuple[str, Cursor]]:
        """Cursors to go back to, the one to end with last."""
        if self.moves and known + 1 < self.moves[0][0]:
            maps = (cursors for checkpoint, cursors in reversed(self.maps) if checkpoint <= known)
            return list(next(maps).items())
        return [
            (topic, cursor)
            for checkpoint, topic, cursor in reversed(self.moves)
            if checkpoint > known
        ]

    def _note_move(self, topic: str) -> None:
        if self.checkpoint % MOVES_KEPT == 0:
            if len(self.maps) == MAPS_KEPT:
                del self.maps[1::2]
            self.maps.append((self.checkpoint, dict(self.cursors)))
        self.checkpoint += 1
        self.moves.append((self.checkpoint, topic, self.cursors[topic]))

    def _note_shown(self, topic: str, seq: int) -> None:
        shown = self.earlier[topic].shown
        shown.add(seq)
        if len(shown) > MOVES_KEPT:  # a client that has come so far has seen the end of the old one
            del self.earlier[topic]
