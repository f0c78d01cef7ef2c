"""Many texts that stay for a while, in two objects instead of one for each.

The interpreter's collector follows every reference of each list that is new to it. A list of 65,536 texts costs it 5 ms, once or twice,
whenever it is due, and the loop stands still meanwhile. Bytes it does not look into.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise


class PackedTexts:
    """Texts in the order in which they were given; each is made anew when it is asked for."""

    __slots__ = ("_ends", "_joined")

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._joined = b"".join(texts)
        self._ends = array("I", accumulate(map(len, texts), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        """Indices count from 0 up; there are no negative ones. Raises IndexError."""
        return self._joined[self._ends[index] : self._ends[index + 1]]

    def __iter__(self) -> Iterator[bytes]:
        joined = self._joined
        return (joined[start:end] for start, end in pairwise(self._ends))
