"""Readers of a campaign of routers: they follow dests with cursors through kills, read again what
they have read before, and let the gates open and close. In the end all is read whole.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tests.campaigns.clients import BROKEN, Actor, Address, Refused
from tests.campaigns.killer import BACK_S
from tests.campaigns.router_history import End, History, Read, Total, ranges_of, read_of
from tests.campaigns.router_topology import Dest, Topology
from tests.support.api import Api, ok
from tests.support.server import Server

PAUSE_S = 0.02
SETTLED_S = 120.0
POLL_S = 0.05
PAGE = 1000
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
    assert answer.status == 200, f"a read of {topic} from {from_seq} answers {answer}"
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


# The end


def settle(server: Server, topology: Topology, history: History) -> None:
    """Wait until no router lags, the first of a chain first; what lags on is a problem."""
    server.wait_ready(BACK_S)
    deadline = time.monotonic() + SETTLED_S
    with Api(server.address, timeout_s=60) as api:
        for dest in topology.dests.values():
            while (told := told_of(api, dest.router))["lag_records"]:
                if time.monotonic() > deadline:
                    history.wrong.append(f"{dest.router} lags on: {told}")
                    break
                time.sleep(POLL_S)


def read_ends(server: Server, topology: Topology, history: History) -> None:
    """Add what every dest and router came to."""
    ends: dict[str, End] = {}
    totals: dict[str, Total] = {}
    with Api(server.address, timeout_s=60) as api:
        for dest in topology.dests.values():
            seqs = _read_whole(api, dest.name, history)
            state = api.state(dest.name)
            history.saw_count(dest.name, state["count"])
            ends[dest.name] = End(state["head_seq"], state["count"], tuple(ranges_of(seqs)))
            told = told_of(api, dest.router)
            totals[dest.router] = Total(told["forwarded_total"], told["lag_records"])
    history.ends.append(ends)
    history.totals.append(totals)


def path_of(router: str) -> str:
    return f"/v0/routers/{quote(router, safe='')}"


def told_of(api: Api, router: str) -> dict[str, Any]:
    """The router's config and counters, asked for until there is an answer."""
    deadline = time.monotonic() + BACK_S
    while True:
        answer = api.call("GET", path_of(router))
        if answer.status not in (429, 503) or time.monotonic() > deadline:
            body: dict[str, Any] = ok(answer)
            return body
        time.sleep(POLL_S)


def _read_whole(api: Api, topic: str, history: History) -> list[int]:
    """The seqs of all its records."""
    seqs: list[int] = []
    cursor, deadline = 0, time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        try:
            read = read_page(api, topic, cursor, PAGE)
        except (Refused, *BROKEN):
            time.sleep(POLL_S)
            continue
        history.take(read.page, read.copies)
        seqs += [seq for seq, _ in read.copies]
        if read.caught_up:
            return seqs
        cursor = read.page.next_seq
    history.wrong.append(f"{topic} cannot be read whole, the cursor stands at {cursor}")
    return seqs
