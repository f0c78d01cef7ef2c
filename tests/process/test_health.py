"""Heartbeats of the children, and notifications to systemd."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.actors.link.link_support import SMALL
from tests.process.family_support import Family, Systemd
from topics.actors.link.board import Board
from topics.actors.link.key_table import KeyTable
from topics.actors.link.liveness import STEP_MAX_S
from topics.process import family as family_module
from topics.process import health as health_module
from topics.process.family import ChildMains, Links, Shared
from topics.process.family import Family as ForkedFamily
from topics.process.health import FIRST_HEARTBEAT_S, STALLED_S, Health
from topics.process.notify import Notifier

pytestmark = pytest.mark.slow


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    listener = Systemd(
        str(tmp_path / "notify") if request.param == "path" else f"@topics-test-{os.getpid()}"
    )
    yield listener
    listener.socket.close()


def test_systemd_receives_replay_progress_ready_watchdog_and_stopping(
    home: Path, systemd: Systemd
) -> None:
    with Family(home, NOTIFY_SOCKET=systemd.name, WATCHDOG_USEC="300000") as family:
        family.order("shard-0", "replay")
        seen = systemd.until("STATUS=replaying, 62 %, 1 of 2 shards ready")
        assert "EXTEND_TIMEOUT_USEC=30000000" in [
            *seen,
            *systemd.until("EXTEND_TIMEOUT_USEC=30000000"),
        ]
        assert "READY=1" not in seen
        family.order("shard-0", "")
        assert "WATCHDOG=1" not in systemd.until("READY=1")
        systemd.until("WATCHDOG=1")
        systemd.until("WATCHDOG=1")
        family.signal(signal.SIGTERM)
        systemd.until("STOPPING=1")
        assert family.end() == 0


def test_a_child_without_heartbeats_is_reported_killed_and_replaced(
    home: Path, tmp_path: Path
) -> None:
    systemd = Systemd(str(tmp_path / "notify"))
    with (
        Family(
            home,
            NOTIFY_SOCKET=systemd.name,
            WATCHDOG_USEC="300000",
            # Other children must not stall on a busy machine, because the status lists all of them.
            STALLED_S="2",
            FIRST_HEARTBEAT_S="2",
            # Otherwise a late check might not report it before the kill.
            KILL_AFTER_S=str(2 + STEP_MAX_S + 0.5),
        ) as family,
        systemd.socket,
    ):
        family.started()
        for kind in ("shard", "front"):
            stopped = family.pids()[f"{kind} 0"]
            os.kill(stopped, signal.SIGSTOP)
            systemd.until(f"STATUS=serving, 2 shards; {kind} 0 is stalled")
            assert family.wait_for("process stalled")["child_pid"] == stopped
            family.wait_for("stalled process killed")
            assert family.wait_for("process died")["child_pid"] == stopped
            assert family.wait_for("process started")["child"] == f"{kind} 0"
            # Until then the status is that of a replay.
            family.wait_for_state(lambda seen: seen["shards"][0][0] == "READY")
        systemd.until("WATCHDOG=1")


def test_a_starting_child_has_more_time_for_its_first_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = Board(1)
    with socket.socket() as listener:
        shared = Shared(board, Links(board, SMALL), listener, Notifier(), KeyTable())
    family = ForkedFamily(shared, ChildMains(lambda: None, lambda _: None), "info")
    monkeypatch.setattr(family_module, "fork", lambda *_, **__: os.getpid())
    (shard,) = family.shards
    health = Health(family, shared)
    now = 100.0
    monkeypatch.setattr(health_module, "time", SimpleNamespace(monotonic=lambda: now))
    family.spawn(shard, now)

    def seconds_until_stalled() -> float:
        nonlocal now
        began = now
        while not shard.is_stalled and now - began < 2 * FIRST_HEARTBEAT_S:
            health.tick()
            now += 1.0
        return now - began

    assert FIRST_HEARTBEAT_S <= seconds_until_stalled() <= FIRST_HEARTBEAT_S + 3
    shard.cells.heartbeat_ms += 1
    health.tick()
    assert not shard.is_stalled
    now += 1.0
    assert STALLED_S <= seconds_until_stalled() <= STALLED_S + 3


def test_a_child_that_is_stopped_for_a_short_time_continues(home: Path) -> None:
    with Family(home, STALLED_S="0.5") as family:
        family.started()
        stopped = family.pids()["shard 1"]
        os.kill(stopped, signal.SIGSTOP)
        family.wait_for("process stalled")
        os.kill(stopped, signal.SIGCONT)
        family.wait_for("process resumed")
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert not family.events("process died")


def test_no_process_is_killed_after_a_suspend_of_the_machine(home: Path) -> None:
    with Family(home, STALLED_S="3", KILL_AFTER_S="3") as family:
        family.started()
        everyone = [family.process.pid, *family.pids().values()]
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4)  # Longer than the heartbeat timeout of any process
        for pid in everyone:  # Continue the supervisor first, when all heartbeats are old
            os.kill(pid, signal.SIGCONT)
        family.front_state()
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert not family.events("process stalled")
        assert not family.events("process died")
