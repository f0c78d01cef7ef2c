"""Readiness: the state of the shards as the front reports it, and the reason of a failure."""

from __future__ import annotations

import pytest

from topics.actors.link.board import Board, ShardCells, ShardState, StartFailure
from topics.actors.shard_client.readiness import Readiness, unavailable_error
from topics.actors.shard_client.shards import ShardLink, Shards


class View(ShardLink):
    """A shard without a link."""

    is_connected = is_stalled = False

    def __init__(self, cells: ShardCells, *, is_connected: bool, is_stalled: bool) -> None:
        self.cells, self.number = cells, 0
        self.is_connected, self.is_stalled = is_connected, is_stalled


def view(
    state: ShardState = ShardState.READY,
    *,
    progress_ppm: int = 0,
    silent_ms: int = 0,
    start_failure: int = 0,
    is_connected: bool = True,
    is_stalled: bool = False,
) -> View:
    cells = Board(1).shard(0)
    cells.state, cells.progress_ppm, cells.disk_silent_ms = state, progress_ppm, silent_ms
    cells.topics, cells.start_failure = 3, start_failure
    return View(cells, is_connected=is_connected, is_stalled=is_stalled)


def readiness_of(views: list[View], *, draining: bool) -> Readiness:
    board = Board(len(views))
    board.draining = draining
    shards = Shards([], board)
    shards._links[:] = views
    for number, each in enumerate(views):
        each.number = number
    return shards.readiness()


STATE_REASONS = [
    (view(), "", None),
    (view(ShardState.READ_ONLY), "", None),
    (view(is_connected=False), "connecting", None),
    (view(is_stalled=True), "stalled", "stalled"),
    (view(ShardState.DAMAGED, is_connected=False), "damaged", "damaged"),
    (view(ShardState.RECOVERING, is_connected=False), "recovering", None),
    *(
        (view(state, start_failure=failure, is_connected=False), name, name)
        for failure, name in (
            (StartFailure.PERMISSION_DENIED, "permission_denied"),
            (StartFailure.DISK_FULL, "disk_full"),
            (StartFailure.DISK_FAILED, "disk_failed"),
            (StartFailure.START_FAILED, "start_failed"),
        )
        for state in (ShardState.DOWN, ShardState.STARTING, ShardState.RECOVERING)
    ),
    (view(ShardState.DAMAGED, start_failure=1, is_connected=False), "damaged", "damaged"),
    (view(silent_ms=10_000), "disk_stalled", "disk_stalled"),
    (view(silent_ms=9_999), "", None),
    (view(silent_ms=10_000, is_stalled=True), "disk_stalled", "disk_stalled"),
    (view(silent_ms=9_999, is_stalled=True), "stalled", "stalled"),
]


@pytest.mark.parametrize(
    ("shard", "unavailable_reason", "reason"), STATE_REASONS, ids=range(len(STATE_REASONS))
)
def test_each_fault_has_its_name_and_its_reason(
    shard: View, unavailable_reason: str, reason: str | None
) -> None:
    assert shard.unavailable_reason == unavailable_reason
    assert shard.not_ready().detail.get("reason") == reason


def test_the_replay_progress_is_that_of_all_shards_together() -> None:
    replaying = view(ShardState.RECOVERING, progress_ppm=500_000, is_connected=False)
    found = readiness_of([view(), replaying], draining=False)
    assert (found.ready, found.progress, found.topics) == (False, 0.75, 6)
    assert found.unavailable == ((1, "recovering"),)
    assert replaying.not_ready().detail == {"replay_progress": 0.5}


def test_a_shard_that_serves_only_reads_is_ready_and_limited() -> None:
    found = readiness_of([view(), view(ShardState.NO_ROOM)], draining=True)
    assert (found.ready, found.draining, found.limited) == (True, True, ((1, "no_room"),))


REPLAYING = (0, "recovering")


@pytest.mark.parametrize(
    ("unavailable", "message", "reason"),
    [
        ((REPLAYING,), "the log is being replayed", None),
        ((REPLAYING, (1, "stalled")), "shard 1 does not respond", "stalled"),
        ((REPLAYING, (2, "damaged"), (3, "stalled")), "shard 2 has damaged data", "damaged"),
        (((4, "disk_stalled"),), "shard 4 is waiting for its disk", "disk_stalled"),
        (
            (REPLAYING, (1, "permission_denied")),
            "shard 1 cannot start: permission to open its files denied",
            "permission_denied",
        ),
    ],
)
def test_a_fault_takes_precedence_over_a_replay_as_the_reason(
    unavailable: tuple[tuple[int, str], ...], message: str, reason: str | None
) -> None:
    failure = unavailable_error(Readiness(False, 0.5, 0, False, unavailable))
    assert (failure.message, failure.detail.get("reason")) == (message, reason)
    assert failure.detail["replay_progress"] == 0.5
    assert failure.detail["shards"] == [
        {"shard": shard, "state": state} for shard, state in unavailable
    ], "all faults are named"
