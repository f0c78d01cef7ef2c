"""Tag index: finds the records with a tag (§5). There is one for each topic and log file, in
memory. It is dropped completely when the file is sealed.

Tags are JSON strings. The index is a list of blocks of 4,096 tags each. A block is a dict from
tag to seqs. When a block is full, its tags are sorted once. No other step of an append takes
longer: there is no single table that must grow, and blocks are never merged. A lookup of a tag
checks the dict of each block, and a lookup of a prefix bisects the sorted tags of each block. With
a million tags, which fill 250 blocks, a lookup takes about a millisecond.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from topics.formats.api.diff_body import TagMatch
from topics.formats.disk.packed_texts import PackedTexts
from topics.formats.json_text import json_string

BLOCK_TAGS = 4096
BLOCKS_FREED_PER_STEP = 4
Block = dict[bytes, "int | array[int]"]


class TagIndex:
    """The tags of one topic in one log file. Seqs are added in ascending order."""

    __slots__ = ("_ends", "_full", "_open", "first_seq", "last_seq")

    def __init__(self) -> None:
        self.first_seq = 0  # extents contain the tags of earlier records
        self.last_seq = 0
        self._open: Block = {}
        # Full blocks, each with its sorted tags. Some of these tags may since have been removed
        # from the dict.
        self._full: list[tuple[Block, PackedTexts]] = []
        self._ends = array("Q")  # last seq of each full block

    def add(self, tagged: Iterable[tuple[int, bytes]], first_seq: int) -> None:
        """Add ``(index, tag)`` of the records of a write that begins at ``first_seq``."""
        seqs = self._open
        for index, tag in tagged:
            seq = first_seq + index
            known = seqs.get(tag)
            if known is None:
                seqs[tag] = seq
                if len(seqs) == BLOCK_TAGS:
                    self._full.append((seqs, PackedTexts(sorted(seqs))))
                    self._ends.append(seq)
                    seqs = self._open = {}
            elif isinstance(known, int):
                seqs[tag] = array("Q", (known, seq))
            else:
                known.append(seq)
            self.last_seq = seq

    def find(self, match: TagMatch, first: int, stop: int) -> tuple[list[int], int]:
        """Return the seqs from ``first`` to ``stop`` (exclusive) of the matching records.

        Also return the number of tags that were examined.
        """
        seqs: list[int] = []
        first, cost = max(first, self.first_seq), 1
        for block, tag in self._matching(match, first, stop):
            found, cost = block[tag], cost + 1
            if not isinstance(found, int):
                seqs += found[bisect_left(found, first) : bisect_left(found, stop)]
            elif first <= found < stop:
                seqs.append(found)
        return seqs, cost

    def remove(self, match: TagMatch, first: int, stop: int) -> None:
        """Remove the matching records from ``first`` to ``stop`` (exclusive), which have been
        deleted.
        """
        for block, tag in list(self._matching(match, first, stop)):
            found = block[tag]
            if not isinstance(found, int):
                del found[bisect_left(found, first) : bisect_left(found, stop)]
                if not found:
                    del block[tag]
            elif first <= found < stop:
                del block[tag]

    def free_step(self) -> bool:
        """Free a part of the memory. Return True while there is more.

        No records can be found in an index that is being freed.
        """
        self._open = {}
        del self._full[-BLOCKS_FREED_PER_STEP:]
        return bool(self._full)

    def _matching(self, match: TagMatch, first: int, stop: int) -> Iterator[tuple[Block, bytes]]:
        """Yield the matching tags of the blocks that have seqs from ``first`` to ``stop``
        (exclusive).
        """
        blocks = self._blocks(first, stop)
        if match.op == "Eq":
            text = json_string(match.text)
            for block, _ in blocks:
                if text in block:
                    yield block, text
            return
        prefix = json_prefix(match.text)
        for block, tags in blocks:
            for tag in block if tags is None else tags.starting_with(prefix):
                if tag.startswith(prefix) and tag in block:
                    yield block, tag

    def _blocks(self, first: int, stop: int) -> list[tuple[Block, PackedTexts | None]]:
        """Return the blocks that have seqs in this range, each with its sorted tags, or None if
        it is open.
        """
        ends = self._ends
        at = bisect_left(ends, first)
        found: list[tuple[Block, PackedTexts | None]] = []
        if first <= self.last_seq:
            found += self._full[at : bisect_left(ends, stop - 1, at) + 1]
            if not ends or ends[-1] + 1 < stop:
                found.append((self._open, None))
        return found


def json_prefix(text: str) -> bytes:
    """Return the bytes with which the JSON string of every text that starts with ``text`` begins.

    Such a prefix exists because each character is encoded independently of the others.
    """
    return json_string(text)[:-1]
