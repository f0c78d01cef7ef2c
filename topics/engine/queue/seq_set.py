"""Seq set: seqs as bits, `BLOCK` of them in one integer.

A run of seqs that are in the set is passed over block by block: two million take a millisecond, and
no memory beyond their 2,000 dict entries, for full blocks share one integer. Ranges would be one
for each job where delayed and fresh ones alternate, and a set would be asked seq by seq: 400,000
delayed jobs took a claim 730 ms.
"""

from __future__ import annotations

BLOCK = 1024
FULL = (1 << BLOCK) - 1


class SeqSet:
    """A set of seqs that is used from its low end to its high end. ``blocks``: empty when it is."""

    __slots__ = ("_low", "blocks")

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}  # never 0
        self._low = 0  # no block is below

    def add(self, seq: int) -> None:
        """Put in a seq, whether it is there or not."""
        number, bit = divmod(seq, BLOCK)
        bits = self.blocks.get(number, 0) | 1 << bit
        self.blocks[number] = FULL if bits == FULL else bits
        self._low = min(self._low, number)

    def discard(self, seq: int) -> None:
        """Take out a seq, if it is there."""
        number, bit = divmod(seq, BLOCK)
        bits = self.blocks.get(number, 0) & ~(1 << bit)
        if bits:
            self.blocks[number] = bits
        else:
            self.blocks.pop(number, None)

    def discard_below(self, seq: int) -> None:
        """Take out the blocks of which all seqs are below ``seq``; some seqs below it may stay."""
        low, self._low = self._low, max(self._low, seq // BLOCK)
        if self._low - low > len(self.blocks):
            self.blocks = {at: bits for at, bits in self.blocks.items() if at >= self._low}
        else:
            for number in range(low, self._low):
                self.blocks.pop(number, None)

    def next_out(self, seq: int) -> int:
        """The first seq from ``seq`` on that is not in the set."""
        number, bit = divmod(seq, BLOCK)
        blocks = self.blocks
        while (bits := blocks.get(number)) is not None:
            zeros = ~bits >> bit
            found = bit + (zeros & -zeros).bit_length() - 1
            if found < BLOCK:
                return number * BLOCK + found
            number, bit = number + 1, 0
        return number * BLOCK + bit

    def next_in(self, seq: int, stop: int) -> int:
        """The first seq of the set from ``seq`` on, at most ``stop``."""
        while seq < stop:
            number, bit = divmod(seq, BLOCK)
            ones = self.blocks.get(number, 0) >> bit
            if ones:
                return min(stop, seq + (ones & -ones).bit_length() - 1)
            seq = (number + 1) * BLOCK
        return stop
