"""Routers go on after a power loss: a server is started on what some of them have left
(`power_loss`), and when nothing lags, every dest of a source that loses nothing holds what the
source holds, in its order, once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.campaigns.mounts import CRASHSTATES
from tests.campaigns.power_routers import ROUTER_SHARDS, ROUTES, Route
from tests.support.api import Api
from tests.support.server import Server

WAL_FILE_BYTES = 64 << 10
SETTLED_S = 30.0
POLL_S = 0.02


def resume(folder: Path, scratch: Path, *, count: int, seed: int, policies: str) -> list[str]:
    """What is wrong after ``count`` losses at random."""
    told = subprocess.run(
        [sys.executable, CRASHSTATES, "points", str(folder / "log")],
        capture_output=True,
        text=True,
        check=True,
    )
    points = json.loads(told.stdout.splitlines()[0])["points"]
    dice, wrong = random.Random(seed), []
    for number in range(count):
        at, policy = dice.randrange(points // 10, points), dice.choice(policies.split(","))
        path = scratch / f"resumed-{number}"
        command = [sys.executable, CRASHSTATES, "replay", str(folder / "log"), str(at), str(path)]
        command += ["--policy", policy, "--seed", str(number)]
        subprocess.run(command, capture_output=True, check=True)
        wrong += [f"point {at}, {policy}, seed {number}: {said}" for said in _problems(path)]
    return wrong


def _problems(data_dir: Path) -> list[str]:
    server = Server(data_dir, shards=ROUTER_SHARDS, wal_file_bytes=WAL_FILE_BYTES)
    try:
        with server, Api(server.address) as api:
            wrong = [said for route in ROUTES for said in _differs(api, route)]
            wrong += [
                str(event)
                for event in (server.log.events() if server.log else [])
                if event.get("event") == "process died"
            ]
            return wrong
    except AssertionError as error:
        return [str(error)[-600:]]


def _differs(api: Api, route: Route) -> Iterator[str]:
    deadline = time.monotonic() + SETTLED_S
    while (answer := api.call("GET", f"/v0/routers/{route.router}")).status != 404:
        told = answer.json()  # while routers are removed whose ends were lost: a 503
        if told.get("lag_records") == 0:
            break
        if time.monotonic() > deadline:
            yield f"{route.router} lags on: {told}"
            return
        time.sleep(POLL_S)
    else:
        return  # not made yet, or its source is deleted
    there = _data(api, route.dest)
    if any(after <= before for before, after in pairwise(there)):
        yield f"{route.dest} is not in order: {there}"
    if route.kind == "plain" and there != (wanted := _data(api, route.root)):
        missing = [origin for origin in wanted if origin not in there]
        more = [origin for origin in there if origin not in wanted]
        yield f"{route.dest} lacks {missing} and has {more}, as {route.root} has not"
    if route.kind == "plain" and told["forwarded_total"] != len(there):
        yield f"{route.router} has forwarded {told['forwarded_total']}, {len(there)} are there"


def _data(api: Api, topic: str) -> list[Any]:
    """Which records: the number of the append, and the position in it."""
    return [record["data"][:2] for record in api.read(topic)]
