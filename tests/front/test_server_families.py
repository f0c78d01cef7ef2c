"""Families of the whole server, from the board."""

from __future__ import annotations

import time

import pytest

from topics.actors.link.board import Board, FrontState, ShardState
from topics.actors.shard_client.readiness import Readiness
from topics.config import Settings
from topics.engine.access import Principal
from topics.formats.api.metrics_text import Family, MetricKind, Value
from topics.front.limits import FrontSlots, make_slots
from topics.front.server_families import CAPS, server_families

READY = Readiness(ready=True, progress=1.0, topics=3, draining=False)
SETTINGS = Settings()


@pytest.fixture
def slots() -> FrontSlots:
    return make_slots(SETTINGS, connections_max=10)


def shown(
    board: Board, slots: FrontSlots, readiness: Readiness = READY, *, draining: bool = False
) -> dict[str, Family]:
    found = [*server_families(board, readiness, slots, SETTINGS, draining=draining)]
    assert len({family.name for family in found}) == len(found)
    assert all(family.kind is not MetricKind.HISTOGRAM for family in found)
    return {family.name: family for family in found}


def values(family: Family) -> dict[str, Value]:
    return {labels[0][1] if labels else "": value for labels, value in family.series}


@pytest.mark.parametrize(
    ("ready", "server_drains", "front_drains", "expected"),
    [
        (True, False, False, 1),
        (False, False, False, 0),
        (True, True, False, 0),
        (True, False, True, 0),
    ],
)
def test_ready_is_what_the_probe_says(
    slots: FrontSlots, ready: bool, server_drains: bool, front_drains: bool, expected: int
) -> None:
    readiness = Readiness(ready, 0.123456789, 0, server_drains)
    found = shown(Board(1), slots, readiness, draining=front_drains)
    assert values(found["topics_ready"]) == {"": expected}
    assert values(found["topics_recovery_progress"]) == {"": 0.123457}


def test_restarts_are_the_forks_but_the_first(slots: FrontSlots) -> None:
    board = Board(2)
    board.front.spawns, board.shard(1).spawns = 1, 4
    family = shown(board, slots)["topics_process_restarts_total"]
    assert family.kind is MetricKind.COUNTER
    assert values(family) == {"front 0": 0, "shard 0": 0, "shard 1": 3}


def test_states_are_numbers_that_the_help_explains(slots: FrontSlots) -> None:
    board = Board(2)
    board.front.state, board.shard(1).state = FrontState.SERVING, ShardState.DAMAGED
    board.shard(0).delay_ms, board.shard(1).disk_silent_ms = 40, 50
    found = shown(board, slots)
    assert values(found["topics_front_state"]) == {"0": 2}
    assert values(found["topics_shard_state"]) == {"0": 0, "1": 7}
    assert "7: damaged" in found["topics_shard_state"].help
    assert values(found["topics_shard_delay_ms"]) == {"0": 40, "1": 0}
    assert values(found["topics_shard_disk_silent_ms"]) == {"0": 0, "1": 50}


def test_streams_sessions_and_caps_are_those_of_the_limits(slots: FrontSlots) -> None:
    for _ in range(2):
        slots.streams.acquire(Principal(b"k"))
    slots.watch_sessions.acquire()
    found = shown(Board(1), slots)
    assert values(found["topics_sse_connections"]) == {"": 2}
    assert values(found["topics_watch_sessions"]) == {"": 1}
    caps = values(found["topics_limit_max"])
    assert caps == {name: getattr(SETTINGS, name) for name in CAPS}


def test_refused_keys_are_counted_by_the_supervisor(slots: FrontSlots) -> None:
    board = Board(1)
    board.keys_reload_failed = 3
    family = shown(board, slots)["topics_keys_reload_failed_total"]
    assert (family.kind, values(family)) == (MetricKind.COUNTER, {"": 3})


def test_uptime_counts_from_the_start_of_the_server(slots: FrontSlots) -> None:
    board = Board(1)
    board.started_monotonic_ms = time.monotonic_ns() // 1_000_000 - 5_000
    uptime = values(shown(board, slots)["topics_uptime_ms"])[""]
    assert isinstance(uptime, int)
    assert 5_000 <= uptime < 60_000
