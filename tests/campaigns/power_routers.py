"""Routers of the load that is recorded for a power loss (`power_load`): within a shard and across,
into fsync and disk dests, a chain, an exactly_once one, sources that evict, are deleted or lose
records while dests keep their copies.

What comes over, and when, is the server's affair. So dests are read now and then, and what was read
is noted: a step ``copies``. A step ``route`` says what the dest promises:

    plain   nothing of the source is ever lost or deleted: every record comes over
    lossy   the source evicts: what is missing is told
    free    records of the source are deleted, or all of it: what comes over is in order, once
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.campaigns.router_topology import named
from tests.support.api import Api, ok

ROUTER_SHARDS = 2
CAP_RECORDS = 15
SETTLED_S = 20.0
POLL_S = 0.005
TAGS = ("a", "b", None)

Do = Callable[..., Any]
"""As `power_load.Load._do`."""


class Route(NamedTuple):
    """A router with its dest. ``root``: where its records are appended."""

    source: str
    dest: str
    durability: str
    kind: str
    root: str
    guarantee: str = "at_least_once"

    @property
    def router(self) -> str:
        return f"{self.source}-to-{self.dest}"

    @property
    def body(self) -> dict[str, Any]:
        """Of its PUT."""
        return {"source": self.source, "dest": self.dest, "guarantee": self.guarantee}


FIRM, LOOSE = named("routed.fsync", 0), named("routed.disk", 1)
CAPPED, CUT, AGAIN = named("routed.capped", 0), named("routed.cut", 1), named("routed.again", 0)
SOURCES: dict[str, dict[str, Any]] = {
    FIRM: {"durability": "fsync"},
    LOOSE: {"durability": "disk"},
    CAPPED: {"durability": "disk", "cap_records": CAP_RECORDS},
    CUT: {"durability": "fsync"},
    AGAIN: {"durability": "disk"},
}


def _route(source: str, shard: int, durability: str, kind: str, **fields: Any) -> Route:
    dest = named(f"{source}.{durability}{shard}", shard)
    return Route(source, dest, durability, kind, source)._replace(**fields)


BOTH = ((0, "fsync"), (0, "disk"), (1, "fsync"), (1, "disk"))
_PLAIN = [_route(source, *where, "plain") for source in (FIRM, LOOSE) for where in BOTH]
_FIRST = _route(LOOSE, 0, "disk", "plain", dest=named("routed.chain1.", 0))
ROUTES = [
    *_PLAIN,
    _FIRST,
    _route(_FIRST.dest, 1, "fsync", "plain", dest=named("routed.chain2.", 1), root=LOOSE),
    _route(FIRM, 1, "fsync", "plain", dest=named("routed.once", 1), guarantee="exactly_once"),
    *(_route(CAPPED, *where, "lossy") for where in ((1, "fsync"), (0, "disk"))),
    *(_route(CUT, *where, "free") for where in ((0, "fsync"), (1, "disk"))),
    *(_route(AGAIN, *where, "free") for where in ((1, "fsync"), (0, "fsync"))),
]


class RouterLoad:
    """Appends to sources and reads dests. ``do`` sends a step and notes it."""

    def __init__(
        self,
        do: Do,
        note: Callable[[dict[str, Any]], None],
        records: Callable[..., list[dict[str, Any]]],
        dice: random.Random,
    ) -> None:
        self._do, self._note, self._records, self._dice = do, note, records, dice
        self._number = 0
        self._heads = dict.fromkeys(SOURCES, 0)
        self._cursors = {route.dest: 0 for route in ROUTES}

    def make(self, api: Api, window_ms: int) -> None:
        """Make topics and routers."""
        for source, config in SOURCES.items():
            self._put(source, {**config, "idempotency_window_ms": window_ms})
        for route in ROUTES:
            config = {"durability": route.durability, "idempotency_window_ms": window_ms}
            self._put(route.dest, config)
        for route in ROUTES:
            self._connect(api, route)

    def step(self, api: Api) -> None:
        """One step on some source or dest."""
        step = self._dice.random()
        if step < 0.55:
            self._append(self._dice.choice([*SOURCES]))
        elif step < 0.8:
            self._read(api, self._dice.choice(ROUTES))
        elif step < 0.87:
            self._delete(CUT)
        elif step < 0.95:
            self._make_again(api, AGAIN)
        else:
            self.settle(api)

    def settle(self, api: Api) -> None:
        """Wait until nothing lags, and read all dests."""
        deadline = time.monotonic() + SETTLED_S
        for route in ROUTES:
            while (told := ok(api.call("GET", f"/v0/routers/{route.router}")))["lag_records"]:
                assert time.monotonic() < deadline, f"{route.router} lags on: {told}"
                time.sleep(POLL_S)
            self._read(api, route)

    def _put(self, topic: str, config: dict[str, Any]) -> None:
        self._do("put", topic, "PUT", "", config, config=config)

    def _connect(self, api: Api, route: Route) -> None:
        began = time.monotonic_ns()
        answer = api.call("PUT", f"/v0/routers/{route.router}", route.body)
        ended = time.monotonic_ns()
        assert answer.status == 201, str(answer)
        told = {"router": route.router, **route._asdict(), "sent": began, "acknowledged": ended}
        self._note({"step": "route", "topic": route.dest, **told})

    def _append(self, source: str) -> None:
        self._number += 1
        sizes = 10, 300, 2500, 6000
        records = self._records(self._dice, self._number, (1, 1, 2, 6), sizes, TAGS)
        body = self._do("append", source, "POST", "", {"records": records}, records=records)
        self._heads[source] = body["head_seq"]

    def _read(self, api: Api, route: Route) -> None:
        """Note the copies that are new."""
        began = time.monotonic_ns()
        cursor = self._cursors[route.dest]
        records = api.read(route.dest, from_seq=cursor, include_tags=True)
        ended = time.monotonic_ns()
        if records:
            self._cursors[route.dest] = records[-1]["$seq"]
            moment = {"sent": began, "acknowledged": ended}
            self._note({"step": "copies", "topic": route.dest, "records": records, **moment})

    def _delete(self, source: str) -> None:
        body = {"before_seq": max(0, self._heads[source] - self._dice.randint(0, 10))}
        self._do("delete", source, "POST", "/delete", body, body=body)

    def _make_again(self, api: Api, source: str) -> None:
        """Delete a source, which takes its routers along, and make all of it once more."""
        routes = [route for route in ROUTES if route.source == source]

        def noted(body: Any) -> dict[str, Any]:
            gone = sorted(route.router for route in routes)
            assert sorted(body["routers_removed"]) == gone, body
            return {}

        self._do("remove", source, "DELETE", "", None, answered=noted)
        self._heads[source] = 0
        self._put(source, SOURCES[source])
        for route in routes:
            self._connect(api, route)
