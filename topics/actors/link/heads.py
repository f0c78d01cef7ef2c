"""Head slots: shared cells with which the front checks whether a page read ahead is still valid.

A shard has `SLOTS` slots of two cells on the board. It assigns a slot to each topic that is read
ahead. If no slot is free, it reassigns the slot with the oldest assignment. Only the shard writes
to the slots:

    version   grows with every change that can change a page of the topic, except appends, and when
              the slot is reassigned
    head      head_seq of the topic

If a page ends below the head, an append changes nothing in the response except its head. So a page
is still the current response while its slot has the version at which the page was made. A shard
advances all versions when it starts. `front/data/read_ahead.py` implements the front's side.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.actors.link.fences import load_fences
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.forward import Advance
from topics.engine.changes.reservation import Reservation
from topics.engine.page import Page
from topics.engine.topic import Topic

SLOTS = 64
SLOT_CELLS = 2


class HeadMark(NamedTuple):
    """The slot of a page's topic, and the version at which the page was made."""

    slot: int
    version: int


def depends_only_on_version(topic: Topic, page: Page) -> bool:
    """Return whether the page changes only with the version, not with an append or the clock."""
    return (
        bool(page.count)
        and page.tombstone is None
        and not (page.caught_up or topic.capped or topic.may_expire)
    )


class HeadSlotReader:
    """The front's view of a shard's slots."""

    def __init__(self, cells: memoryview) -> None:
        self._cells, self._order = cells, load_fences().order

    def head(self, mark: HeadMark) -> int | None:
        """Return the topic's head, or None if the version has changed and the page is outdated."""
        cells, at = self._cells, mark.slot * SLOT_CELLS
        # Check the version before and after reading the head, so that the head belongs to it.
        if cells[at] != mark.version:
            return None
        if self._order:
            self._order()
        head = int(cells[at + 1])
        if self._order:
            self._order()
        return head if cells[at] == mark.version else None


class HeadSlotWriter:
    """The shard's own slots. The writer follows the topics that have a slot."""

    def __init__(self, cells: memoryview) -> None:
        self._cells, self._order = cells, load_fences().order
        self._assigned: dict[int, tuple[int, Topic]] = {}  # by topic id, in the order of assignment
        self._free = list(range(SLOTS))
        for slot in self._free:
            self._advance(slot)

    def mark(self, topic: Topic) -> HeadMark:
        """Return the mark of a page that is read now. Assign a slot if the topic has none."""
        lent = self._assigned.get(topic.id)
        slot = self._assign(topic) if lent is None else lent[0]
        return HeadMark(slot, int(self._cells[slot * SLOT_CELLS]))

    def _changed(self, change: Change) -> None:
        """Publish a change of a topic in its slot, before any client gets the success reply."""
        if isinstance(change, Reservation) or (isinstance(change, Advance) and not change.skipped):
            return
        slot, topic = self._assigned[change.topic.id]
        if isinstance(change, Append):
            self._cells[slot * SLOT_CELLS + 1] = topic.head_seq
            return
        self._advance(slot)
        if isinstance(change, DeleteTopic):
            self._free.append(self._unassign(topic.id))

    def _assign(self, topic: Topic) -> int:
        slot = self._free.pop() if self._free else self._unassign(next(iter(self._assigned)))
        self._assigned[topic.id] = slot, topic
        topic.follow(self._changed)
        self._advance(slot)
        self._cells[slot * SLOT_CELLS + 1] = topic.head_seq
        return slot

    def _unassign(self, topic_id: int) -> int:
        slot, topic = self._assigned.pop(topic_id)
        topic.unfollow(self._changed)
        return slot

    def _advance(self, slot: int) -> None:
        self._cells[slot * SLOT_CELLS] += 1
        if self._order:
            self._order()
