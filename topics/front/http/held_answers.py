"""Held answers: memory of answers that wait for their clients. While clients hold too much, the
slowest are cut.

    held bytes                        cut, slowest first
    up to the bound                   no client
    up to `HELD_FACTOR` times that    clients that would take longer than `TURNOVER_MAX_S`
    above                             all clients, until the bound holds
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from topics.front.http.transfer_rate import TransferRate

HELD_MAX_BYTES = 256 << 20
HELD_FACTOR = 2
TURNOVER_MAX_S = 10.0


class Client(Protocol):
    """A connection that an answer is being sent on."""

    rate: TransferRate  # at which it takes answers

    def cut(self) -> None:
        """End it now."""


class HeldAnswers:
    """The answers of all connections that wait for their clients."""

    def __init__(self, max_bytes: int = HELD_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[Client, int] = {}
        self.held_bytes = 0

    @contextmanager
    def holding(self, client: Client, size: int) -> Iterator[None]:
        """So many bytes of an answer stay in memory until ``client`` has taken them."""
        client.rate.count(size, trio.current_time())  # a credit of some seconds
        self._sizes[client] = size
        self.held_bytes += size
        self.shed()
        try:
            yield
        finally:
            self._release(client)

    def shed(self) -> None:
        """Cut the slowest clients while too much is held."""
        if self.held_bytes <= self._max_bytes:
            return
        now = trio.current_time()
        slowness = {one: one.rate.turnover_s(size, now) for one, size in self._sizes.items()}
        for client in sorted(slowness, key=slowness.__getitem__, reverse=True):
            factor = 1 if slowness[client] > TURNOVER_MAX_S else HELD_FACTOR
            if self.held_bytes <= factor * self._max_bytes:
                return
            self._release(client)
            client.cut()

    def _release(self, client: Client) -> None:
        self.held_bytes -= self._sizes.pop(client, 0)
