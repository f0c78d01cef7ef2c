"""Moved keys: which records of other topics a topic has got (decision 0049).

A copy that a shard appends has a key that names the record that it is a copy of::

    $dead_letter:SOURCE:EPOCH:SEQ....    a dead letter of the queue SOURCE
    $redrive:SOURCE:EPOCH:SEQ....        a record that a redrive takes out of SOURCE

A source has one batch under way at a time and begins the next when it knows what has become of each
copy of the last one. So the newest keys of each source, as many as a batch may have, tell of every
copy that may be made again, whatever has become of the copy and of the dedupe window. They are kept
beside the window, in the order of the copies' seqs, and so a replay comes to the same keys.

Bounds: `BATCH_JOBS` or `WINDOW_RECORDS` keys of 16 bytes for each source, `SOURCES_MAX` sources for
each topic, of which the one that was idle longest goes first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from topics.formats.api.limits import KEY_MAX_CHARS

BATCH_JOBS = 64  # of a queue, on their way to its dead-letter topic
WINDOW_RECORDS = 256  # of a topic, on their way in a redrive
SOURCES_MAX = 1024
_DEAD_LETTER = "$dead_letter:"

Part = tuple[str, bytes, bytes]
"""A source in a checkpoint: all of its keys but the seq, and two columns of little-endian u64: seqs
there, and seqs of the copies here.
"""


def copy_key(what: str, source: str, epoch: int, seq: int) -> str:
    """The key of a copy of the record ``seq`` of the topic ``source``.

    It names the topic, for topics of two shards may have equal epochs. It is longer than a client's
    key may be: nobody can take it before the copy comes, for which the record would then be
    deleted.
    """
    return f"${what}:{source}:{epoch}:{seq}".ljust(KEY_MAX_CHARS + 1, ".")


def is_copy_key(key: str) -> bool:
    """Whether it is a key of a copy, not of a client."""
    return len(key) > KEY_MAX_CHARS


class MovedKeys:
    """The newest keys of copies of each source, the source that was idle longest first."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        # By source: seqs of the records there, and of their copies here.
        self._sources: dict[str, tuple[array[int], array[int]]] = {}

    def find(self, key: str) -> int:
        """Seq of the copy with this key, 0 for none."""
        source, seq = _split(key)
        found = self._sources.get(source)
        if found is None or seq not in found[0]:
            return 0
        return found[1][found[0].index(seq)]

    def note(self, key: str, copy_seq: int) -> None:
        """A copy is there. Copies come in the order of their seqs; one that is known is none."""
        source, seq = _split(key)
        found = self._sources.pop(source) if source in self._sources else (array("Q"), array("Q"))
        self._sources[source] = seqs, copies = found
        if copies and copy_seq <= copies[-1]:
            return
        if len(seqs) >= (BATCH_JOBS if source.startswith(_DEAD_LETTER) else WINDOW_RECORDS):
            del seqs[0], copies[0]
        seqs.append(seq)
        copies.append(copy_seq)
        if len(self._sources) > SOURCES_MAX:
            del self._sources[next(iter(self._sources))]

    # In a checkpoint

    def parts(self) -> Iterator[tuple[str, array[int], array[int]]]:
        """All sources, each as a part has it. They may change between two steps."""
        for source in tuple(self._sources):
            found = self._sources.get(source)
            if found is not None:
                yield source, *found

    def restore(self, part: Part) -> None:
        """Take over a part, in the order of `parts`."""
        source, seqs, copies = part
        self._sources[source] = array("Q", seqs), array("Q", copies)


def _split(key: str) -> tuple[str, int]:
    """The source, as one text of all but the seq, and the seq."""
    source, _, seq = key.rstrip(".").rpartition(":")
    return source, int(seq)
