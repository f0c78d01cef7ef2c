"""Key table: the valid API keys, in memory that the supervisor and the front share.

    offset   size  field       contents
    0        8     generation  number of the current generation; 0: no keys have been published
    8        8     -           not used
    16       n     half 0      the keys, if the generation is even
    16 + n   n     half 1      the keys, if the generation is odd

Each half has this layout:

    offset   size  field       contents
    0        4     length      number of bytes in entries
    4        -     entries     a MessagePack array of arrays: digest, scopes, prefixes

``digest``: SHA-256 of the secret, never the secret itself. ``scopes``: the integer value of the
`Scope` flags. ``prefixes``: nil if the key may access every topic name. Integers are little-endian.
The supervisor writes the inactive half first, and then the generation. So a reader that finds the
same generation before and after its copy has a consistent half, and a front that starts during a
change does not wait.
"""

from __future__ import annotations

import mmap
import struct

from msgspec.msgpack import Decoder, Encoder

from topics.actors.link.fences import load_fences
from topics.engine.access import Access, Principal, Scope

TABLE_HEADER = struct.Struct("<Q8x")
LENGTH = struct.Struct("<I")
assert TABLE_HEADER.size == 16

HALF_MIN_BYTES = 1024 * 1024  # minimum size of a half; untouched pages use no memory
GROWTH_FACTOR = 4  # factor by which the size of the keys may grow after startup

_encode = Encoder().encode
_decode = Decoder(list[tuple[bytes, int, tuple[str, ...] | None]]).decode


class KeyTable:
    """The shared memory, created by the supervisor before the first fork."""

    def __init__(self, half_bytes: int = HALF_MIN_BYTES) -> None:
        """Create an empty table with generation 0."""
        whole = -(-half_bytes // 8) * 8
        self._half_bytes = whole
        self._bytes = memoryview(mmap.mmap(-1, TABLE_HEADER.size + 2 * whole))
        self._generation = self._bytes[:8].cast("Q")
        self._order = load_fences().order

    @classmethod
    def of(cls, access: Access) -> KeyTable:
        """Create a table with these keys and space for more."""
        table = cls(max(HALF_MIN_BYTES, GROWTH_FACTOR * len(encode(access))))
        table.publish(access)
        return table

    @property
    def generation(self) -> int:
        """A number that grows with every change of the keys."""
        return int(self._generation[0])

    def publish(self, access: Access) -> None:
        """Make these keys valid, and all other keys invalid. Only the supervisor calls this.

        Raises ValueError if the encoded keys do not fit in a half of the table.
        """
        half, generation = encode(access), self.generation + 1
        if len(half) > self._half_bytes:
            raise ValueError("the keys and their prefixes are too long for this server")
        start = self._start(generation)
        self._bytes[start : start + len(half)] = half
        self._fence()
        self._generation[0] = generation

    def read(self) -> tuple[int, Access]:
        """Return the generation and its keys."""
        while True:
            generation = self.generation
            self._fence()
            start = self._start(generation)
            (length,) = LENGTH.unpack_from(self._bytes, start)
            whole = LENGTH.size + min(length, self._half_bytes - LENGTH.size)
            half = bytes(self._bytes[start : start + whole])
            self._fence()
            if self.generation == generation:
                return generation, decode(half)

    def _start(self, generation: int) -> int:
        return TABLE_HEADER.size + generation % 2 * self._half_bytes

    def _fence(self) -> None:
        if self._order:
            self._order()


class KeyReader:
    """The front's view of the table. ``access``: the keys when the reader was created."""

    def __init__(self, table: KeyTable) -> None:
        self._table = table
        self._generation, self.access = table.read()

    def changed(self) -> Access | None:
        """Return the keys if they have changed since the last call, otherwise None."""
        if self._table.generation == self._generation:
            return None
        self._generation, access = self._table.read()
        return access


def encode(access: Access) -> bytes:
    """Encode the keys in the format of one half of the table."""
    entries = _encode([(one.digest, one.scopes.value, one.prefixes) for one in access.principals])
    return LENGTH.pack(len(entries)) + entries


def decode(half: bytes) -> Access:
    """Decode a half of the table that was encoded by `encode`."""
    entries = _decode(half[LENGTH.size :]) if len(half) > LENGTH.size else []
    return Access(
        Principal(digest, Scope(scopes), prefixes) for digest, scopes, prefixes in entries
    )
