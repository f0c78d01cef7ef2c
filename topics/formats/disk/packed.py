"""Packed texts: many JSON strings in order, sixteen in one object.

For texts that stay for a while: the interpreter's collector follows every reference of a list that
is new to it, which takes 5 ms for 65,536 texts, once or twice, and the shard's loop stands still
meanwhile. It does not look into bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

BLOCK_TEXTS = 16
_END = b"\n"  # in no JSON string, and below every byte of one


class PackedTexts:
    """JSON strings in the order of their bytes; each is made again whenever it is read."""

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
        """The texts that begin with ``prefix``."""
        blocks, found = self._blocks, []
        at = bisect_left(blocks, prefix)
        if at and prefix in blocks[at - 1]:  # it begins below the prefix and may reach it
            found = _matching(blocks[at - 1], prefix)
        while at < len(blocks) and blocks[at].startswith(prefix):
            found += _matching(blocks[at], prefix)
            at += 1
        return found


def _matching(block: bytes, prefix: bytes) -> list[bytes]:
    return [text for text in block.split(_END) if text.startswith(prefix)]
