"""The end of a campaign of routers: wait until nothing lags, read all, restart, and read again."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from tests.campaigns.clients import BROKEN, Refused
from tests.campaigns.killer import BACK_S
from tests.campaigns.router_history import End, History, Total, ranges_of
from tests.campaigns.router_reader import read_page
from tests.campaigns.router_topology import Topology
from tests.support.api import Api, ok
from tests.support.server import Server

SETTLED_S = 120.0
POLL_S = 0.05
PAGE = 1000


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


def told_of(api: Api, router: str) -> dict[str, Any]:
    """The router's config and counters, asked for until there is an answer."""
    deadline = time.monotonic() + BACK_S
    while True:
        answer = api.call("GET", f"/v0/routers/{quote(router, safe='')}")
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
