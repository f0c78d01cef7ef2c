"""The shared-memory cells in which processes publish their states."""

from __future__ import annotations

from itertools import combinations

from topics.actors.link.board import COUNTERS, Board, FrontCells, FrontState, ShardCells, ShardState
from topics.actors.link.liveness import STALLED_S, STEP_MAX_S, Liveness
from topics.actors.link.process_id import ProcessId


def pairs(board: Board) -> list[tuple[ProcessId, ProcessId]]:
    return [*combinations(board.processes, 2)]


def test_a_new_board_has_all_processes_down_and_all_pairs_in_session_1() -> None:
    board = Board(4)
    assert [board.session(*pair) for pair in pairs(board)] == [1] * 10
    assert {board.shard(index).state for index in range(3)} == {ShardState.DOWN}
    assert board.front.state is FrontState.DOWN
    assert not board.draining


def test_no_two_fields_share_a_cell() -> None:
    board = Board(3)
    value = 10
    expected: list[tuple[FrontCells | ShardCells, str, int]] = []
    for process, cells in enumerate(map(board.process, board.processes)):
        for name in (
            "pid",
            "spawns",
            "heartbeat_ms",
            "progress_ppm",
            "topics",
            "disk_silent_ms",
            "delay_ms",
        ):
            if hasattr(cells, name):
                value += 1
                setattr(cells, name, value)
                expected.append((cells, name, value))
        for number in range(COUNTERS):
            cells.counters[number] = 10_000 * (process + 1) + number
    assert len(expected) == 3 + 3 * 7
    assert all(getattr(cells, name) == stored for cells, name, stored in expected)
    assert [list(board.process(one).counters) for one in board.processes] == [
        [10_000 * (process + 1) + number for number in range(COUNTERS)] for process in range(4)
    ]
    assert [board.session(*pair) for pair in pairs(board)] == [1] * 6


def test_a_new_session_of_one_pair_does_not_affect_the_others() -> None:
    board = Board(3)
    for number, pair in enumerate(pairs(board)):
        cell = board.session_cell(*reversed(pair))
        for _ in range(number):
            board.bump_session(*pair)
        assert cell[0] == 1 + number, "the order of the ends does not matter"
    assert [board.session(*pair) for pair in pairs(board)] == [1, 2, 3, 4, 5, 6]


def test_the_numbers_of_states_never_change() -> None:
    named = {
        "DOWN": 0,
        "STARTING": 1,
        "RECOVERING": 2,
        "READY": 3,
        "READ_ONLY": 4,
        "STOPPED": 5,
        "NO_ROOM": 6,
        "DAMAGED": 7,
        "DIRECTORY_LOST": 8,
    }
    assert {state.name: int(state) for state in ShardState} == named
    assert [state.name for state in sorted(FrontState)] == [
        "DOWN",
        "STARTING",
        "SERVING",
        "DRAINING",
    ]


# Heartbeats


def test_the_silence_grows_until_the_heartbeat_changes() -> None:
    pulse = Liveness()
    assert [
        pulse.observe(sign, now)
        for sign, now in [(1, 10.0), (1, 10.5), (1, 11.5), (2, 12.0), (2, 12.5)]
    ] == [0.0, 0.5, 1.5, 0.0, 0.5]


def test_a_watcher_does_not_count_the_time_in_which_it_was_suspended_itself() -> None:
    pulse = Liveness()
    pulse.observe(1, 10.0)
    pulse.observe(1, 10.5)
    assert pulse.observe(1, 1000.0) == 0.5 + STEP_MAX_S < STALLED_S
    assert pulse.observe(2, 1000.5) == 0.0
