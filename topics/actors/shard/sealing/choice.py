"""Merge choice: which segments are merged into one (decision 0044).

A candidate run is segments that are neighbours in the log and whose live records fit one segment:
RUN_MIN_SEGMENTS or more, or fewer when their dead records would fill a segment. So at most
RUN_MIN_SEGMENTS segments, and as many again for each segment's worth of live records, stand for
long, however long the history is; and where little lives, a segment's worth of dead records.

A run is merged if that pays, one way or the other:

    twice the live bytes <= length of the files   for each byte that is written, a dead one goes
    twice the largest <= live bytes               each record moves to a segment twice as large, a
                                                  few times in its life; not in a short run

The choice decides from numbers alone; it knows nothing of files or tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from topics.engine.locators import is_extent, split_locator
from topics.engine.topic import Topic

RUN_MIN_SEGMENTS: Final = 8
RUN_MAX_SEGMENTS: Final = 64  # open at once
EXTENT_COST_BYTES: Final = 256  # of an extent beyond its records: directory, tables, padding
STEP_ENTRIES: Final = 512


class Candidate(NamedTuple):
    """A segment. ``live_bytes``: room that its live records take in another one, at most; None: it
    must stay as it is. ``dead_bytes``: about what its dead records take beside live ones.
    """

    number: int
    live_bytes: int | None
    file_bytes: int
    dead_bytes: int


def choose_run(candidates: Sequence[Candidate], bytes_max: int) -> list[int]:
    """Numbers of the segments to be merged, none when no merge pays. ``candidates``: in the order
    of the log.
    """
    best: Sequence[Candidate] = ()
    for begin in range(len(candidates)):
        run = _run_at(candidates[begin : begin + RUN_MAX_SEGMENTS], bytes_max)
        if len(run) > len(best):
            best = run
            if len(best) == RUN_MAX_SEGMENTS:
                break
    return [candidate.number for candidate in best]


def _run_at(candidates: Sequence[Candidate], bytes_max: int) -> Sequence[Candidate]:
    """The longest run that begins with the first candidate and pays."""
    live = largest = files = dead = best = 0
    for count, (_, live_bytes, file_bytes, dead_bytes) in enumerate(candidates, 1):
        if live_bytes is None or live + live_bytes > bytes_max:
            break
        live, largest, files = live + live_bytes, max(largest, live_bytes), files + file_bytes
        dead += dead_bytes
        is_long = count >= RUN_MIN_SEGMENTS
        if (2 * live <= files and (is_long or dead >= bytes_max)) or (
            is_long and 2 * largest <= live
        ):
            best = count
    return candidates[:best]


class LiveRoom:
    """Counts, for each segment, the room that its live records take in another one at most, and
    about the bytes of the dead ones in their extents.
    """

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}  # by segment
        self.dead: dict[int, int] = {}

    def count(self, topic: Topic) -> Iterator[int]:
        """Add a topic. Yields about how many entries each step has looked at; the topic may change
        between two steps.
        """
        seq, index = 0, topic.index
        while True:
            at = index.find(seq)
            stop = min(at + STEP_ENTRIES, index.find(topic.sealed_seq + 1))
            if at >= stop:
                break
            for entry in range(at, stop):
                self._count_entry(topic, entry)
            first_seq, count, _, _ = index.entry(stop - 1)
            seq = first_seq + count
            yield stop - at
        yield 1

    def _count_entry(self, topic: Topic, at: int) -> None:
        first_seq, count, locator, size = topic.index.entry(at)
        if not size or not is_extent(locator):
            return
        # Dead records between live ones end an extent, or are carried along (`merge_contents`).
        gone = topic.index.gone.get(first_seq, 0)
        inner = max(gone - max(topic.start_seq - first_seq, 0), 0)
        number, _ = split_locator(locator)
        room = size + EXTENT_COST_BYTES * (1 + min(inner, count - gone))
        self.bytes[number] = self.bytes.get(number, 0) + room
        if gone:
            self.dead[number] = self.dead.get(number, 0) + size * gone // (count - gone)
