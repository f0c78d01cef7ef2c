"""Held memory: the ledger of memory that the front uses for slow clients.

The memory contains responses, stream events, jobs and WebSocket messages that clients have not read
yet, and incomplete requests (`UnreadInput`).

    memory                                     bound                   its name in a refusal
    held for all clients                       TOPICS_MAX_HELD_BYTES   max_held_bytes
    held for the clients that share a key      half of that            max_held_bytes_per_key
    held for one client, after its first block `BACKLOG_MAX_BYTES`
    unread input from all clients              TOPICS_MAX_HELD_BYTES

    a group's held memory     disconnected clients, slowest first             new long responses
    up to half of its bound   none                                            sent
    up to its bound           clients that need longer than `TURNOVER_MAX_S`  sent
    above its bound           clients, until the sum is within the bound      refused (`refusal`)

A *block* is one object in memory. A block for which many clients are waiting, such as a feed page,
counts once in each sum. A client that reads less than `READ_MIN_BYTES_PER_S` is also disconnected
(`Holding.due`). This depends on the age of the oldest unsent byte, not on the time since the client
last read a byte.

The ledger uses neither sockets nor clocks, and disconnects no client itself: `excess` returns the
clients to disconnect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from topics.errors import Throttled
from topics.front.transfer_rate import TransferRate

DEFAULT_MAX_BYTES = 96 << 20
BACKLOG_MAX_BYTES = 32 << 20
TURNOVER_MAX_S = 10.0
STALL_MAX_S = 30.0  # §7.6; the maximum age of the oldest unsent byte
UNREAD_MIN_BYTES = 1024  # a client with less unread input is not counted
READ_MIN_BYTES_PER_S = 16 * 1024  # each 16 KiB that a client reads extend its limit by one second


class Client(Protocol):
    """A connection, a stream or a body that holds memory because its client is slow."""

    def disconnect(self) -> None:
        """Disconnect the client now. Called when its memory is needed."""


class Holding:
    """The unsent data for one client: a list of blocks, the first of which is being sent."""

    __slots__ = ("_taken", "blocks", "client", "key", "rate", "since", "size")

    def __init__(self, client: Client, key: bytes, now: float) -> None:
        self.client, self.key, self.since = client, key, now
        self.blocks: list[tuple[int, int]] = []  # identity and length of each block
        self.size = 0  # total length of all blocks
        self.rate = TransferRate()  # the rate at which the client reads
        self._taken = 0

    @property
    def due(self) -> float:
        """The time at which the client counts as too slow."""
        return self.since + STALL_MAX_S + self._taken / READ_MIN_BYTES_PER_S

    def count_sent(self, count: int, now: float) -> None:
        """Count ``count`` bytes that the client has accepted."""
        self._taken += count
        self.rate.count(count, now)


class _Sum:
    """The total memory of a group of clients, with each block counted once."""

    __slots__ = ("_counts", "holdings", "most", "size")

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.holdings: set[Holding] = set()
        # Number of clients that are waiting for each block, by the block's identity.
        self._counts: dict[int, int] = {}

    def add(self, block: int, length: int) -> None:
        """Count a client that is waiting for the block."""
        count = self._counts.get(block, 0)
        self._counts[block] = count + 1
        if not count:
            self.size += length

    def remove(self, block: int, length: int) -> None:
        """Stop counting a client that was waiting for the block."""
        count = self._counts.pop(block)
        if count > 1:
            self._counts[block] = count - 1
        else:
            self.size -= length


class UnreadInput:
    """The unread input of clients: incomplete requests, and requests that are waiting for an
    earlier one to finish.

    ``most`` bounds the bytes of all clients; 0 means no bound. ``on_excess`` is called when
    `excess` has clients to disconnect.
    """

    def __init__(self, most: int, on_excess: Callable[[], None]) -> None:
        self.most, self.size = most, 0
        self._on_excess = on_excess
        self._kept: dict[Client, tuple[bytes, int]] = {}  # oldest first

    def keep(self, client: Client, key: bytes, length: int) -> None:
        """Set the number of unread bytes of this client, whose key is ``key``, to ``length``.

        An amount below `UNREAD_MIN_BYTES` is not counted, because the connection itself uses more
        memory.
        """
        _, before = self._kept.get(client, (key, 0))
        if length >= UNREAD_MIN_BYTES:
            self._kept[client] = key, length
        elif before:
            length = 0
            del self._kept[client]
        else:
            return
        self.size += length - before
        if 0 < self.most < self.size:
            self._on_excess()

    def excess(self) -> list[Client]:
        """Return the clients to disconnect so that a quarter of the bound becomes free.

        Clients without a key are first, then clients of the key with the most unread bytes. Within
        each group, the oldest client is first.
        """
        found: list[Client] = []
        if not 0 < self.most < self.size:
            return found
        clients: dict[bytes, list[Client]] = {}
        sizes: dict[bytes, int] = {}
        for client, (key, length) in self._kept.items():
            clients.setdefault(key, []).append(client)
            sizes[key] = sizes.get(key, 0) + length
        for key in sorted(sizes, key=lambda key: (key != b"", -sizes[key])):
            for client in clients[key]:
                if self.size <= self.most * 3 // 4:
                    return found
                self.size -= self._kept.pop(client)[1]
                found.append(client)
        return found


class HeldMemory:
    """The ledger of one front. ``most`` 0 means no bound.

    ``on_excess`` is called when `excess` may return clients before the next tick.
    """

    def __init__(self, most: int = DEFAULT_MAX_BYTES) -> None:
        self.on_excess: Callable[[], None] = _nothing
        self.unread = UnreadInput(most, lambda: self.on_excess())
        self._all = _Sum(most)
        self._keys: dict[bytes, _Sum] = {}  # by key; b"" is for clients that have no key
        self._overlong: list[Holding] = []  # holdings above `BACKLOG_MAX_BYTES`

    @property
    def size(self) -> int:
        """The number of held bytes."""
        return self._all.size

    def hold(self, client: Client, key: bytes, now: float) -> Holding:
        """Start a holding for a client whose socket does not accept all data immediately.

        The caller must call `release` afterwards.
        """
        holding = Holding(client, key, now)
        of_key = self._keys.get(key)
        if of_key is None:
            # The clients that share a key may use half of the total bound. For clients without a
            # key, only the total bound applies.
            of_key = self._keys[key] = _Sum(self._all.most // 2 if key else 0)
        of_key.holdings.add(holding)
        self._all.holdings.add(holding)
        return holding

    def add(self, holding: Holding, block: object, length: int, now: float) -> None:
        """Add a block that is waiting to be sent to the client.

        The block must exist until the holding is released.
        """
        of_key = self._keys.get(holding.key)
        if of_key is None or holding not in of_key.holdings:
            return  # the client is already being disconnected
        holding.blocks.append((id(block), length))
        holding.size += length
        holding.rate.count(length, now)  # a credit, so that the client has time to read this block
        # The first block does not count: it may be a single long response.
        if holding.size - holding.blocks[0][1] > BACKLOG_MAX_BYTES:
            self._overlong.append(holding)
            self.on_excess()
        for one in (of_key, self._all):
            one.add(id(block), length)
            if 0 < one.most < one.size:
                self.on_excess()

    def release(self, holding: Holding) -> None:
        """Release a holding, because the client has accepted everything or is disconnected.

        Safe to call twice.
        """
        of_key = self._keys.get(holding.key)
        if of_key is None or holding not in of_key.holdings:
            return
        for one in (of_key, self._all):
            one.holdings.remove(holding)
            for block, length in holding.blocks:
                one.remove(block, length)
        if not of_key.holdings:
            del self._keys[holding.key]

    def refusal(self, key: bytes, length: int) -> Throttled | None:
        """Return the error if holding a response or page of ``length`` bytes for a client with this
        key would exceed a bound, otherwise None.

        A key without held memory is never refused.
        """
        of_key = self._keys.get(key)
        if of_key is None:
            return None
        for name, one in (("max_held_bytes_per_key", of_key), ("max_held_bytes", self._all)):
            if 0 < one.most < one.size + length:
                message = "too much unsent data is held for slow clients"
                return Throttled(message, limit=name, max=one.most)
        return None

    def excess(self, now: float) -> list[Client]:
        """Release the holdings of clients that must be disconnected, and return the clients.

        Call this on ``on_excess`` and once a second.
        """
        overlong, self._overlong = self._overlong, []
        found = [holding for holding in overlong if holding in self._all.holdings]
        for holding in found:
            self.release(holding)
        for one in [*self._keys.values(), self._all]:
            # No client is disconnected below half of the bound.
            if 0 < one.most < 2 * one.size:
                found += self._slowest(one, now)
        return [*(holding.client for holding in found), *self.unread.excess()]

    def _slowest(self, one: _Sum, now: float) -> Iterator[Holding]:
        """Release holdings, slowest first, until the sum is within its bound."""
        slowness = {holding: holding.rate.turnover_s(holding.size, now) for holding in one.holdings}
        for holding in sorted(slowness, key=slowness.__getitem__, reverse=True):
            if one.size <= (one.most // 2 if slowness[holding] > TURNOVER_MAX_S else one.most):
                return
            self.release(holding)
            yield holding


def _nothing() -> None:
    pass
