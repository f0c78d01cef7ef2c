"""Packed texts: stores many sorted JSON strings, sixteen per bytes object.

Packed texts are used for texts that stay in memory for some time. The garbage collector follows
every reference of a new list once or twice. This takes 5 ms for 65,536 texts and blocks the loop of
the shard. Packed texts have one sixteenth of the references.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

BLOCK_TEXTS = 16
# The separator of the texts. No JSON string contains this byte, and it is lower than all bytes that
# a JSON string contains, so blocks are sorted like their first texts.
_END = b"\n"


class PackedTexts:
    """JSON strings, sorted by their bytes. Each read creates a new bytes object."""

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
        """Return the texts that begin with ``prefix``."""
        blocks, found = self._blocks, []
        at = bisect_left(blocks, prefix)
        # The previous block starts with a text below the prefix, but may contain later matches.
        if at and prefix in blocks[at - 1]:
            found = _matching(blocks[at - 1], prefix)
        while at < len(blocks) and blocks[at].startswith(prefix):
            found += _matching(blocks[at], prefix)
            at += 1
        return found


def _matching(block: bytes, prefix: bytes) -> list[bytes]:
    return [text for text in block.split(_END) if text.startswith(prefix)]
