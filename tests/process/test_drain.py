"""The stop of a server."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.process.family_support import Family, wait_until_exited

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_drains_the_front_first_and_then_the_shards(home: Path, number: int) -> None:
    with Family(home) as family:
        family.started().signal(number)
        assert family.end() == 0
        order = [line["child"] for line in family.events("process ended")]
        assert order[0] == "front 0"
        assert {*order[1:]} == {"shard 0", "shard 1"}
        for line in family.events("front stops"):
            assert line["draining"] is True
            assert line["shards_alive"] == [True, True]
        with pytest.raises(ConnectionRefusedError):
            family.connect()


@pytest.mark.parametrize("through", [[], ["nohup"]], ids=["as it is", "nohup"])
def test_a_hang_up_signal_does_not_stop_a_server(home: Path, through: list[str]) -> None:
    with Family(home, through=through, TOPICS_DRAIN_MS="1000") as family:
        family.started().signal(signal.SIGHUP)
        assert family.wait_for("signal ignored")["reason"] == "there is no key file"
        assert family.front_state()["shards"]
        family.order("front-0", "stubborn")
        family.signal(signal.SIGTERM)
        family.wait_for("signal received", signal="SIGTERM")
        family.signal(signal.SIGHUP)
        assert family.wait_for("signal ignored")["reason"] == "the server is stopping"
        assert family.end() == 0


def test_children_that_do_not_stop_are_killed_after_the_drain_time(home: Path) -> None:
    with Family(home, TOPICS_DRAIN_MS="1000") as family:
        family.order("front-0", "stubborn")
        family.started()
        began = time.monotonic()
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert time.monotonic() - began >= 1
        ends = {line["child"]: line.get("signal", "") for line in family.events("process ended")}
        (killing,) = family.events("drain timed out")
        assert "front 0" in killing["killed"]
        killed = {*killing["killed"]}  # It may include a shard that had no time to stop
        assert {child for child, by in ends.items() if by == "SIGKILL"} == killed
        assert {*ends} == {"front 0", "shard 0", "shard 1"}


def test_a_second_interrupt_kills_all_children_immediately(home: Path) -> None:
    with Family(home) as family:
        family.order("front-0", "stubborn")
        family.started().signal(signal.SIGINT)
        family.wait_for("signal received", signal="SIGINT")
        family.signal(signal.SIGINT)
        assert family.end() == 130
        for pid in family.pids().values():
            wait_until_exited(pid)


def test_a_stop_does_not_wait_for_the_delayed_restart_of_a_shard(home: Path) -> None:
    with Family(home) as family:
        family.order("shard-0", "exit 1")
        while family.wait_for("process died", child="shard 0")["retry_in_s"] < 0.4:
            pass
        family.signal(signal.SIGTERM)
        assert family.end() == 0
