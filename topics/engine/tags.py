"""Which records have which tag (§5): one index for each (topic, log file), in memory, dropped as a whole when the file is sealed.

Tags are JSON strings. New ones are noted as they come and put in order 4,096 at a time: no append waits for more than that, and a
prefix is looked up by bisection in each ordered run. Runs are not merged: a log file holds some hundred thousand records at most,
which is some ten runs, and a million distinct tags are still searched in less than a millisecond. For the same reason the tags are
in several dicts: one that grows is copied as a whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain

from topics.formats.requests import Match, json_string

RUN_TAGS = 4096
PART_TAGS = 16384  # of one dict; a tag may be in several


class TagIndex:
    """Tags of the records of one topic in one log file. Seqs come in rising order."""

    __slots__ = ("_fresh", "_parts", "_runs", "last_seq")

    def __init__(self) -> None:
        self.last_seq = 0
        self._parts: list[dict[bytes, int | array[int]]] = [{}]
        self._fresh: list[bytes] = []  # tags that are in no run yet
        self._runs: list[list[bytes]] = []

    def __len__(self) -> int:
        return len(set().union(*self._parts))

    def add(self, tagged: Iterable[tuple[int, bytes]], first_seq: int) -> None:
        """Note ``(index, tag)`` of the records of a write."""
        seqs = self._parts[-1]
        for index, tag in tagged:
            seq = first_seq + index
            known = seqs.get(tag)
            if known is None:
                if len(seqs) >= PART_TAGS:
                    seqs = {}
                    self._parts.append(seqs)
                seqs[tag] = seq
                self._fresh.append(tag)
                if len(self._fresh) == RUN_TAGS:
                    self._runs.append(sorted(self._fresh))
                    self._fresh = []
            elif isinstance(known, int):
                seqs[tag] = array("Q", (known, seq))
            else:
                known.append(seq)
            self.last_seq = seq

    def find(self, match: Match) -> Iterator[int]:
        """Seqs of the records that match, those of a tag in rising order."""
        return chain.from_iterable(map(self._seqs_of, self._tags(match)))

    def forget(self, match: Match, bound: int) -> None:
        """The records below ``bound`` that match are gone."""
        for tag in self._tags(match):
            for part in self._parts:
                rest = [seq for seq in _seqs(part, tag) if seq >= bound]
                if rest:
                    part[tag] = array("Q", rest)
                else:
                    part.pop(tag, None)  # its place in a run stays, and finds nothing

    def let_go(self) -> bool:
        """Free a part of the memory; True while there is more. Nothing is found in an index that is being let go."""
        if self._parts:
            self._parts.pop()
        elif self._runs:
            del self._runs[-4:]
        return bool(self._parts or self._runs)

    def _seqs_of(self, tag: bytes) -> Iterator[int]:
        return chain.from_iterable(_seqs(part, tag) for part in self._parts)

    def _tags(self, match: Match) -> Iterable[bytes]:
        if match.op == "Eq":
            return (json_string(match.text),)
        prefix = json_prefix(match.text)
        tags = {tag for tag in self._fresh if tag.startswith(prefix)}
        for run in self._runs:
            start = bisect_left(run, prefix)
            if start < len(run) and run[start].startswith(prefix):
                stop = bisect_left(run, prefix + b"\xff", start)  # no UTF-8 holds this byte
                tags.update(run[start:stop])
        return tags


def _seqs(part: dict[bytes, int | array[int]], tag: bytes) -> Iterable[int]:
    found = part.get(tag, ())
    return (found,) if isinstance(found, int) else found


def json_prefix(text: str) -> bytes:
    """How the JSON string of each text begins that begins with ``text``: every character is rendered by itself."""
    return json_string(text)[:-1]


__all__ = ["TagIndex", "json_prefix"]
