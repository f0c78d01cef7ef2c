"""Readers of a campaign of routers: they follow dests with cursors through kills, read again what
they have read before, and let the gates open and close.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from tests.campaigns.clients import Actor, Address, Refused, Wrong
from tests.campaigns.router_history import History, Read, read_of
from tests.campaigns.router_topology import Dest
from tests.support.api import Api

PAUSE_S = 0.02
AGAIN_SHARE = 0.15
WAIT_SHARE = 0.1
SHUT_S = (0.2, 2.5)
PAGE_BYTES = 4 << 20


def read_page(api: Api, topic: str, from_seq: int, limit: int, wait_ms: int = 0) -> Read:
    """One page."""
    asked = {"limit": limit, "wait_ms": wait_ms, "max_batch_bytes": PAGE_BYTES}
    answer = api.diff(topic, from_seq=from_seq, include_tags=True, **asked)
    if answer.status in (429, 503):
        raise Refused(str(answer))
    if answer.status != 200:
        raise Wrong(f"a read of {topic} from {from_seq} answers {answer}")
    return read_of(topic, from_seq, answer.body)


class Reader(Actor):
    """Follows some dests. Nobody else reads them."""

    def __init__(
        self, number: int, dests: Sequence[Dest], address: Address, history: History, seed: int
    ) -> None:
        super().__init__(f"reader-{number}", address, random.Random(f"{seed}/reader/{number}"))
        self._names, self._history = [dest.name for dest in dests], history
        self._cursors = dict.fromkeys(self._names, 0)

    def turn(self) -> None:
        self._follow(self.dice.choice(self._names))
        self.ending.wait(PAUSE_S)

    def _follow(self, topic: str) -> None:
        cursor, limit = self._cursors[topic], self.dice.choice((7, 100, 1000))
        if cursor and self.dice.random() < AGAIN_SHARE:
            self._read(topic, self.dice.randrange(cursor), limit)
            self.counts["read again"] += 1
        else:
            wait_ms = 300 if self.dice.random() < WAIT_SHARE else 0
            self._cursors[topic] = self._read(topic, cursor, limit, wait_ms)

    def _read(self, topic: str, from_seq: int, limit: int, wait_ms: int = 0) -> int:
        """The next cursor."""
        read = read_page(self.line.api, topic, from_seq, limit, wait_ms)
        self._history.take(read.page, read.copies)
        return read.page.next_seq


class GateKeeper(Reader):
    """Reads a dest that rejects, and deletes what it has read: now and then, or as fast as it can
    when it was told to `open`.
    """

    def __init__(
        self, number: int, dests: Sequence[Dest], address: Address, history: History, seed: int
    ) -> None:
        super().__init__(number, dests, address, history, seed)
        self._open = threading.Event()
        self._deleted = {dest.name: 0 for dest in dests}  # up to there, acknowledged

    def open(self) -> None:
        self._open.set()

    def _follow(self, topic: str) -> None:
        # A gate that is shut has nothing new behind its cursor: what is there was read.
        self._cursors[topic] = cursor = self._read(topic, self._cursors[topic], 1000)
        self._count(topic)
        if not self._open.is_set():
            self.ending.wait(self.dice.uniform(*SHUT_S))
            self._count(topic)
            cursor -= self.dice.choice((0, 0, 3, 20))
        if cursor > self._deleted[topic]:
            self._history.may_delete(topic, cursor)
            asked = {"before_seq": cursor + 1}
            self.line.ask("POST", f"/v0/topics/{topic}/delete", asked)
            self._deleted[topic] = cursor

    def _count(self, topic: str) -> None:
        answer = self.line.api.get(topic, touch="false")
        if answer.status == 200:
            self._history.saw_count(topic, answer.json()["count"])
