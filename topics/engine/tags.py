"""Tag index: which records have which tag (§5). One for each topic and log file, in memory; it is
dropped as a whole when the file is sealed.

Tags are JSON strings. The index is a list of portions of 4,096 tags. A portion is a dict from tag
to seqs; when it is full, its tags are sorted once. So no append waits for more than that: no table
of all tags grows, and nothing is merged. A tag is looked up in every portion, a prefix by bisection
in each of them: a million tags are 250 portions, which take about a millisecond.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from topics.formats.api.delete_body import TagMatch
from topics.formats.disk.packed import PackedTexts
from topics.formats.json_text import json_string

PORTION_TAGS = 4096
PORTIONS_FREED_AT_ONCE = 4
Portion = dict[bytes, "int | array[int]"]


class TagIndex:
    """Tags of the records of one topic in one log file. Seqs come in rising order."""

    __slots__ = ("_full", "_open", "first_seq", "last_seq")

    def __init__(self) -> None:
        self.first_seq = 0  # tags of earlier records are found in extents
        self.last_seq = 0
        self._open: Portion = {}
        # Each with its tags in order, of which some may have been forgotten since.
        self._full: list[tuple[Portion, PackedTexts]] = []

    def add(self, tagged: Iterable[tuple[int, bytes]], first_seq: int) -> None:
        """Note ``(index, tag)`` of the records of a write."""
        seqs = self._open
        for index, tag in tagged:
            seq = first_seq + index
            known = seqs.get(tag)
            if known is None:
                seqs[tag] = seq
                if len(seqs) == PORTION_TAGS:
                    self._full.append((seqs, PackedTexts(sorted(seqs))))
                    seqs = self._open = {}
            elif isinstance(known, int):
                seqs[tag] = array("Q", (known, seq))
            else:
                known.append(seq)
            self.last_seq = seq

    def find(self, match: TagMatch) -> Iterator[int]:
        """Seqs of the records that match."""
        first_seq = self.first_seq
        for portion, tag in self._matching(match):
            found = portion[tag]
            if isinstance(found, int):
                if found >= first_seq:
                    yield found
            elif found[0] >= first_seq:
                yield from found
            else:
                yield from found[bisect_left(found, first_seq) :]

    def forget(self, match: TagMatch, bound: int) -> None:
        """Forget the records below ``bound`` that match: they are deleted."""
        for portion, tag in list(self._matching(match)):
            found = portion[tag]
            rest = [seq for seq in ((found,) if isinstance(found, int) else found) if seq >= bound]
            if rest:
                portion[tag] = array("Q", rest)
            else:
                del portion[tag]

    def free_some(self) -> bool:
        """Free a part of the memory; True while there is more. Nothing is found in an index that is
        being freed.
        """
        self._open = {}
        del self._full[-PORTIONS_FREED_AT_ONCE:]
        return bool(self._full)

    def _matching(self, match: TagMatch) -> Iterator[tuple[Portion, bytes]]:
        if match.op == "Eq":
            text = json_string(match.text)
            for portion, _ in (*self._full, (self._open, None)):
                if text in portion:
                    yield portion, text
            return
        prefix = json_prefix(match.text)
        for portion, tags in self._full:
            for tag in tags.starting_with(prefix):
                if tag in portion:
                    yield portion, tag
        for tag in self._open:
            if tag.startswith(prefix):
                yield self._open, tag


def json_prefix(text: str) -> bytes:
    """The JSON string of every text that begins with ``text`` begins so: each character is rendered
    by itself.
    """
    return json_string(text)[:-1]
