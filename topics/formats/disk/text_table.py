"""Building of text tables: the nodes or the tags of an extent (layout: ``segment.py``).

Texts are first numbered in order of appearance. At the end they are sorted, and the ref of every
record is replaced with the number of its text in the sorted order. All work is divided into steps
of less than a millisecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import accumulate, islice

from topics.formats.disk.packed_texts import PackedTexts
from topics.formats.disk.records import Texts

STEP_ROWS = 4096  # number of table rows that are processed in one step
STEP_TEXTS = 512  # number of texts that are merged in one step
RUN_TEXTS = 1024  # number of texts that are sorted in one step


class TextTable:
    """The texts of the added records, and a ref for each record (0: it has no text).

    Before `sort`, refs are numbers in order of appearance. Afterwards they are numbers in sorted
    order.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.refs = array("I")
        self.parts: list[bytes] = []  # the sorted texts, many of them concatenated in each part
        self.ends = array("I")  # the end of each sorted text in the concatenated parts

    def add(self, count: int, texts: Texts, refs: Sequence[int]) -> None:
        """Add the next records, which follow ``count`` earlier records.

        Each of ``refs`` is a position in ``texts``, from 1, or 0 for a record without a text.
        """
        self.fill(count)
        numbers = self._numbers
        if len(refs) == 1:
            ref = refs[0]
            self.refs.append(numbers.setdefault(texts[ref - 1], len(numbers) + 1) if ref else 0)
            return
        table = {
            ref: numbers.setdefault(texts[ref - 1], len(numbers) + 1) if ref else 0
            for ref in set(refs)
        }
        self.refs.extend(map(table.__getitem__, refs))

    def fill(self, count: int) -> None:
        """Add records without a text until there are ``count`` records."""
        if len(self.refs) < count:
            self.refs.frombytes(bytes(4 * (count - len(self.refs))))

    def sort(self) -> Iterator[None]:
        """Sort all texts into ``parts`` and ``ends`` and renumber the refs. Yields between steps.

        Runs of RUN_TEXTS are sorted first and then merged.
        """
        unsorted, runs = iter(self._numbers), []
        while run := sorted(islice(unsorted, RUN_TEXTS)):
            runs.append(PackedTexts(run))
            yield
        merged = merge(*runs)
        new_refs = array("I", bytes(4 * (len(self._numbers) + 1)))
        while part := list(islice(merged, STEP_TEXTS)):
            for ref, text in enumerate(part, len(self.ends) + 1):
                new_refs[self._numbers[text]] = ref
            self.parts.append(b"".join(part))
            _append_ends(self.ends, map(len, part))
            yield
        refs, self.refs = self.refs, array("I")
        for start in range(0, len(refs), STEP_ROWS):
            self.refs.extend(map(new_refs.__getitem__, refs[start : start + STEP_ROWS]))
            yield

    def postings(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ends of the postings and the postings as the last item. Call `sort` first.

        Earlier items are empty and only end a step.
        """
        if not self.ends:
            return
        counts = array("I", bytes(4 * (len(self.ends) + 1)))
        for start in range(0, len(self.refs), STEP_ROWS):
            for ref in self.refs[start : start + STEP_ROWS]:
                counts[ref] += 1
            yield b"", b""
        counts[0] = 0
        # The position of the next record of each ref in the postings. It is initially the start of
        # the ref's records, and finally their end.
        at = array("I", [0])
        for start in range(0, len(counts), STEP_ROWS):
            _append_ends(at, counts[start : start + STEP_ROWS])
            yield b"", b""
        postings = array("I", bytes(4 * at.pop()))
        for start in range(0, len(self.refs), STEP_ROWS):
            for index, ref in enumerate(self.refs[start : start + STEP_ROWS], start):
                if ref:
                    postings[at[ref]] = index
                    at[ref] += 1
            yield b"", b""
        yield at[1:].tobytes(), postings.tobytes()


def _append_ends(ends: array[int], lengths: Iterable[int]) -> None:
    """Append the ends of parts with these lengths, which follow the existing parts."""
    sums = accumulate(lengths, initial=ends[-1] if ends else 0)
    next(sums)
    ends.extend(sums)
