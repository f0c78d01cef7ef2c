"""Many JSON strings in order that stay for a while, sixteen in one object.

The interpreter's collector follows every reference of each list that is new to it. A list of 65,536
texts costs it 5 ms, once or twice, whenever it is due, and the loop stands still meanwhile. Bytes
it does not look into.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

BLOCK_TEXTS = 16
_END = b"\n"  # no JSON string holds it as it is, and it sorts before all that one holds


class PackedTexts:
    """Some JSON strings in the order of their bytes; each is made anew when it is asked for."""

    __slots__ = ("_blocks",)

    def __init__(self, ordered: Sequence[bytes]) -> None:
        self._blocks = [
            _END.join(ordered[start : start + BLOCK_TEXTS])
            for start in range(0, len(ordered), BLOCK_TEXTS)
        ]

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            yield from block.split(_END)

    def starting_with(self, prefix: bytes) -> list[bytes]:
        """Those that begin so."""
        blocks, found = self._blocks, []
        at = bisect_left(blocks, prefix)
        if at and prefix in blocks[at - 1]:  # which begins with less, and may end with some
            found = _matching(blocks[at - 1], prefix)
        while at < len(blocks) and blocks[at].startswith(prefix):
            found += _matching(blocks[at], prefix)
            at += 1
        return found


def _matching(block: bytes, prefix: bytes) -> list[bytes]:
    return [text for text in block.split(_END) if text.startswith(prefix)]
