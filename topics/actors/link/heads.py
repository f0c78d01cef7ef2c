"""Heads of topics that are read from end to end, in shared memory: whether a page that was made
ahead is still the answer.

A shard has `SLOTS` slots of two words on the board, and lends one to each topic that is read ahead;
the one lent longest ago goes first. Both words are written by the shard only.

    version   one more with everything that happens to the topic but an append, and when the slot is lent to another topic
    head      head_seq of the topic

A page that ends below the head does not change by an append, except for the head that is told with
it. So a page is the answer of this moment as long as its slot has the version that it was made at.
A shard that starts moves all versions on.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.actors.link.fences import load_fences
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.reservation import Reservation
from topics.engine.page import Page
from topics.engine.topic import Topic

SLOTS = 64
SLOT_WORDS = 2


class HeadMark(NamedTuple):
    """Where and at which version a page was made."""

    slot: int
    version: int


def holds_still(topic: Topic, page: Page) -> bool:
    """Whether nothing but a change that moves the version can make another answer of the page: no
    append, and no clock.
    """
    return (
        bool(page.count)
        and page.tombstone is None
        and not (page.caught_up or topic.capped or topic.is_perishable)
    )


class HeadReader:
    """A front's view of a shard's slots."""

    def __init__(self, words: memoryview) -> None:
        self._words, self._order = words, load_fences().order

    def head(self, mark: HeadMark) -> int | None:
        """The topic's head now; None when something but an append has happened to it since."""
        words, at = self._words, mark.slot * SLOT_WORDS
        if words[at] != mark.version:
            return None
        if self._order:
            self._order()
        head = int(words[at + 1])
        if self._order:
            self._order()
        return head if words[at] == mark.version else None


class HeadWriter:
    """The shard's own slots."""

    def __init__(self, words: memoryview) -> None:
        self._words, self._order = words, load_fences().order
        self._slots: dict[int, int] = {}  # by topic id, in the order in which they were lent
        self._free = list(range(SLOTS))
        for slot in self._free:
            self._move_on(slot)

    def mark(self, topic: Topic) -> HeadMark:
        """Of a page that is read now. Lends a slot if the topic has none."""
        slot = self._slots.get(topic.id)
        if slot is None:
            slot = self._lend(topic)
        return HeadMark(slot, int(self._words[slot * SLOT_WORDS]))

    def committed(self, change: Change) -> None:
        """Tell of a change, before anybody is told of its success."""
        slot = self._slots.get(change.topic.id)
        if slot is None or isinstance(change, Reservation):
            return
        if isinstance(change, Append):
            self._words[slot * SLOT_WORDS + 1] = change.topic.head_seq
            return
        self._move_on(slot)
        if isinstance(change, DeleteTopic):
            self._free.append(self._slots.pop(change.topic.id))

    def _lend(self, topic: Topic) -> int:
        slot = self._free.pop() if self._free else self._slots.pop(next(iter(self._slots)))
        self._slots[topic.id] = slot
        self._move_on(slot)
        self._words[slot * SLOT_WORDS + 1] = topic.head_seq
        return slot

    def _move_on(self, slot: int) -> None:
        self._words[slot * SLOT_WORDS] += 1
        if self._order:
            self._order()
