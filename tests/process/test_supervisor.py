"""The supervisor with real processes, a real board and stand-ins for the workers: deaths of
children.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.process.family_support import Family, Systemd, wait_until_exited

pytestmark = pytest.mark.slow


def test_a_killed_shard_is_restarted_immediately_without_effect_on_the_others(home: Path) -> None:
    with Family(home) as family:
        family.started()
        before = family.front_state()
        assert before["sessions"] == [1, 1]
        os.kill(before["shards"][1][1], signal.SIGKILL)
        after = family.wait_for_state(
            lambda seen: seen["shards"][1][2] == 2 and seen["shards"][1][0] == "READY"
        )
        assert after["sessions"] == [1, 2]
        assert after["shards"][0] == before["shards"][0]
        assert after["pid"] == before["pid"]
        assert after["shards"][1][1] != before["shards"][1][1]
        died = family.wait_for("process died", child="shard 1")
        assert (died["signal"], died["child_pid"], died["retry_in_s"]) == (
            "SIGKILL",
            before["shards"][1][1],
            0.0,
        )


def test_no_connection_is_refused_during_the_restart_of_a_front(home: Path) -> None:
    with Family(home) as family:
        family.started()
        family.order("front-0", "wait")
        os.kill(family.pids()["front 0"], signal.SIGKILL)
        family.wait_for("process died", child="front 0")
        waiting = [family.connect() for _ in range(20)]
        family.order("front-0", "")
        for connection in waiting:
            with connection, connection.makefile() as answer:
                assert json.loads(answer.readline())["sessions"] == [2, 2]


def test_an_exception_in_a_child_is_logged_with_its_traceback_and_without_tokens(
    home: Path,
) -> None:
    with Family(home) as family:
        family.order("shard-1", "raise")
        failed = family.wait_for("process failed")
        assert failed["process"] == "shard 1"
        assert "Traceback" in failed["exception"]
        assert "RuntimeError: raised by the test" in failed["exception"]
        assert "s3cret" not in failed["exception"]
        assert family.wait_for("process died", child="shard 1")["exit_code"] == 1


def test_a_shard_with_damaged_data_stays_down_and_the_others_serve(
    home: Path, tmp_path: Path
) -> None:
    systemd = Systemd(str(tmp_path / "notify"))
    with Family(home, NOTIFY_SOCKET=systemd.name) as family, systemd.socket:
        family.order("shard-1", "exit 3")
        family.url = family.wait_for("listening")["url"]
        given_up = family.wait_for("damaged shard not restarted")
        assert (given_up["child"], given_up["level"]) == ("shard 1", "critical")
        assert family.wait_for("ready with damaged shards")["damaged"] == [1]
        seen = systemd.until("STATUS=serving, 1 of 2 shards; shard 1 is damaged, see the log")
        assert "READY=1" in seen
        os.kill(family.pids()["shard 0"], signal.SIGKILL)
        shards = family.wait_for_state(
            lambda seen: seen["shards"][0][2] == 2 and seen["shards"][0][0] == "READY"
        )["shards"]
        assert shards[1] == ["DAMAGED", 0, 1], "the damaged shard was restarted"
        family.signal(signal.SIGTERM)
        assert family.end() == 3
        ended = {line["child"]: line["exit_code"] for line in family.events("process ended")}
        assert ended == {"front 0": 0, "shard 0": 0}, "the others were not drained"


def test_a_server_whose_shards_are_all_damaged_stops_with_status_3(home: Path) -> None:
    with Family(home) as family:
        family.started()
        for index in range(2):
            family.order(f"shard-{index}", "exit 3")
            os.kill(family.pids()[f"shard {index}"], signal.SIGKILL)
        assert family.end() == 3
        ended = {line["child"]: line["exit_code"] for line in family.events("process ended")}
        assert ended == {"front 0": 0}


def test_no_child_outlives_a_killed_supervisor(home: Path) -> None:
    with Family(home) as family:
        family.started()
        pids = family.pids().values()
        assert len(pids) == 3
        family.signal(signal.SIGKILL)
        for pid in pids:
            wait_until_exited(pid)
