"""Readers of a campaign of routers: they follow dests with cursors through kills, read again what
they have read before, and let the gates open and close.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable, Sequence

from tests.campaigns.killer import BACK_S
from tests.campaigns.router_history import History, Read, read_of
from tests.campaigns.router_topology import Dest
from tests.support.api import Api

RETRY_S = 0.05
PAUSE_S = 0.02
AGAIN_SHARE = 0.15
WAIT_SHARE = 0.1
SHUT_S = (0.2, 2.5)
PAGE_BYTES = 4 << 20

Address = Callable[[], tuple[str, int]]


class Refused(Exception):
    """An answer that promises nothing: try again."""


def read_page(api: Api, topic: str, from_seq: int, limit: int, wait_ms: int = 0) -> Read:
    """One page. ValueError for an answer that the contract does not have."""
    answer = api.diff(
        topic,
        from_seq=from_seq,
        limit=limit,
        include_tags=True,
        wait_ms=wait_ms,
        max_batch_bytes=PAGE_BYTES,
    )
    if answer.status in (429, 503):
        raise Refused(str(answer))
    if answer.status != 200:
        raise ValueError(f"a read of {topic} from {from_seq} answers {answer}")
    return read_of(topic, from_seq, answer.body)


class Reader(threading.Thread):
    """Follows some dests until it is stopped or an answer is wrong. Nobody else reads them."""

    def __init__(
        self, number: int, dests: Sequence[Dest], address: Address, history: History, seed: int
    ) -> None:
        super().__init__(name=f"reader-{number}", daemon=True)
        self._dests, self._address, self._history = dests, address, history
        self._random = random.Random(f"{seed}/reader/{number}")
        self._cursors = {dest.name: 0 for dest in dests}
        self._ending = threading.Event()
        self._api: Api | None = None
        self.again = 0  # pages that were read again

    def stop(self) -> None:
        self._ending.set()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._turn(self._random.choice(self._dests).name)
                self._ending.wait(PAUSE_S)
            except (OSError, EOFError, http.client.HTTPException, Refused):
                self._hang_up()
                self._ending.wait(RETRY_S)
            except Exception as error:
                self._history.wrong.append(f"{self.name}: {error!r}")
                break
        self._hang_up()

    def _turn(self, topic: str) -> None:
        cursor, limit = self._cursors[topic], self._random.choice((7, 100, 1000))
        if cursor and self._random.random() < AGAIN_SHARE:
            self._read(topic, self._random.randrange(cursor), limit)
            self.again += 1
        else:
            wait_ms = 300 if self._random.random() < WAIT_SHARE else 0
            self._cursors[topic] = self._read(topic, cursor, limit, wait_ms)

    def _read(self, topic: str, from_seq: int, limit: int, wait_ms: int = 0) -> int:
        """The next cursor."""
        read = read_page(self._connected(), topic, from_seq, limit, wait_ms)
        self._history.take(read.page, read.copies)
        return read.page.next_seq

    def _connected(self) -> Api:
        if self._api is None:
            self._api = Api(self._address(), timeout_s=BACK_S)
        return self._api

    def _hang_up(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None


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

    def _turn(self, topic: str) -> None:
        # A gate that is shut has nothing new behind its cursor: what is there was read.
        self._cursors[topic] = cursor = self._read(topic, self._cursors[topic], 1000)
        self._count(topic)
        if not self._open.is_set():
            self._ending.wait(self._random.uniform(*SHUT_S))
            self._count(topic)
            cursor -= self._random.choice((0, 0, 3, 20))
        if cursor > self._deleted[topic]:
            self._history.may_delete(topic, cursor)
            answer = self._connected().call(
                "POST", f"/v0/topics/{topic}/delete", {"before_seq": cursor + 1}
            )
            if answer.status in (429, 503):
                raise Refused(str(answer))
            if answer.status != 200:
                raise ValueError(f"a delete in {topic} answers {answer}")
            self._deleted[topic] = cursor

    def _count(self, topic: str) -> None:
        answer = self._connected().get(topic, touch="false")
        if answer.status == 200:
            self._history.saw_count(topic, json.loads(answer.body)["count"])
