"""Moved keys: which records of other topics have been copied to a topic (decision 0049).

A copy that a shard appends has an idempotency key that identifies the original record::

    $dead_letter:SOURCE:EPOCH:SEQ....    a dead letter of the queue SOURCE
    $redrive:SOURCE:EPOCH:SEQ....        a record that a redrive moves out of SOURCE

A source has at most one batch in flight. It starts the next batch when the outcome of each copy of
the previous batch is known. So it is sufficient to keep as many keys of each source as a batch can
have. These newest keys cover every copy that may be attempted again. This holds even if the copy
was deleted or the dedupe window has expired. The keys are stored alongside the window, in the order
of the seqs of the copies, so a replay restores the same keys.

Bounds: `BATCH_JOBS` or `WINDOW_RECORDS` keys of 16 bytes for each source, and `SOURCES_MAX` sources
for each topic. Beyond that, the source that has been idle longest is dropped first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from topics.formats.api.limits import KEY_MAX_CHARS

BATCH_JOBS = 64  # jobs of one queue that are moved to its dead-letter topic together
WINDOW_RECORDS = 256  # records of one topic that a redrive moves together
SOURCES_MAX = 1024
_DEAD_LETTER = "$dead_letter:"

Part = tuple[str, bytes, bytes]
"""A source in a checkpoint: the common part of its keys, and two columns of little-endian u64:
the seqs of the original records and the seqs of their copies.
"""


def copy_key(what: str, source: str, epoch: int, seq: int) -> str:
    """Return the key of a copy of the record ``seq`` of the topic ``source``.

    The key contains the name of the topic, because topics of two shards may have equal epochs. It
    is longer than the maximum for the keys of clients. So no client can use the key before the copy
    is appended. Otherwise the copy would be treated as a duplicate, and the original would be
    deleted.
    """
    return f"${what}:{source}:{epoch}:{seq}".ljust(KEY_MAX_CHARS + 1, ".")


def is_copy_key(key: str) -> bool:
    """Return whether the key belongs to a copy and not to a client."""
    return len(key) > KEY_MAX_CHARS


class MovedKeys:
    """The newest keys of copies of each source. The source that has been idle longest is the first
    one.
    """

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        # By source: the seqs of the original records, and the seqs of their copies.
        self._sources: dict[str, tuple[array[int], array[int]]] = {}

    def find(self, key: str) -> int:
        """Return the seq of the copy with this key, or 0 if it is not known."""
        source, seq = _split(key)
        found = self._sources.get(source)
        if found is None or seq not in found[0]:
            return 0
        return found[1][found[0].index(seq)]

    def add(self, key: str, copy_seq: int) -> None:
        """Store the key of a copy. Copies must be added in the order of their seqs.

        A copy that has already been added is ignored.
        """
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

    # Format in a checkpoint

    def parts(self) -> Iterator[tuple[str, array[int], array[int]]]:
        """Yield all sources with their seqs and the seqs of the copies. They may change between two
        steps.
        """
        for source in tuple(self._sources):
            found = self._sources.get(source)
            if found is not None:
                yield source, *found

    def restore(self, part: Part) -> None:
        """Restore a source from a part. The parts must be restored in the order of `parts`."""
        source, seqs, copies = part
        self._sources[source] = array("Q", seqs), array("Q", copies)


def _split(key: str) -> tuple[str, int]:
    """Return the source, which is all of the key before the seq, and the seq."""
    source, _, seq = key.rstrip(".").rpartition(":")
    return source, int(seq)
