"""The supervisor with real processes, a real board and stand-ins for the workers (tests/family.py)."""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from topics.actors.link.board import Board, ShardState, ShardWords
from topics.actors.link.process_id import shard_id
from topics.process.child import Child
from topics.storage.data_dir import encode_meta

ROOT = Path(__file__).parent.parent
WITHIN_S = 30.0  # how long any one event may take on a busy machine

pytestmark = pytest.mark.slow


class Family:
    """One server under test; its log lines are what the tests wait for."""

    def __init__(self, home: Path, *, through: Sequence[str] = (), **environ: str) -> None:
        """``through`` is a command that starts it."""
        self.home = home
        self.command = [*through, sys.executable, str(ROOT / "tests" / "family.py")]
        (home / "orders").mkdir(exist_ok=True)
        self.environ = {
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
            "ORDERS": str(home / "orders"),
            "TOPICS_DATA_DIR": str(home / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_SHARDS": "2",
            "TOPICS_MAX_BODY_BYTES": "1048576",
        } | environ
        self.seen: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.command, env=self.environ, stderr=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()

    def order(self, name: str, text: str) -> None:
        """Tell a worker what to do when it starts next; no text takes the order back."""
        path = self.home / "orders" / f"{name}.do"
        if text:
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)
        else:
            path.unlink()

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next log line of that name with those fields."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.seen.append(json.loads(line))
            if self.seen[-1]["event"] == event and fields.items() <= self.seen[-1].items():
                return self.seen[-1]
        raise AssertionError(f"no {event} {fields} before the end; there was {self.seen}")

    def started(self) -> Self:
        """Wait until it serves."""
        self.url = self.wait_for("listening")["url"]
        self.wait_for("ready")
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Read what is left of the log; the exit status."""
        assert self.process.stderr
        self.seen += [json.loads(line) for line in self.process.stderr]
        return self.process.wait(WITHIN_S)

    def pids(self) -> dict[str, int]:
        """The latest pid of every child."""
        return {
            line["child"]: line["child_pid"]
            for line in self.seen
            if line["event"] == "process started"
        }

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.seen if line["event"] == event]

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), WITHIN_S)

    def ask(self) -> dict[str, Any]:
        """What a front sees."""
        with self.connect() as connection, connection.makefile() as answer:
            return dict(json.loads(answer.readline()))

    def ask_until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask again and again; each answer takes the front one beat."""
        deadline = time.monotonic() + WITHIN_S
        while not holds(answer := self.ask()):
            assert time.monotonic() < deadline, answer
        return answer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that need not be ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], WITHIN_S)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


# Start


def test_it_says_where_it_listens_and_serves_when_every_shard_is_ready(home: Path) -> None:
    with Family(home) as family:
        listening = family.wait_for("listening")
        assert listening["url"].startswith("http://127.0.0.1:")
        assert (listening["shards"], listening["auth"], listening["data_dir"]) == (
            2,
            "none",
            str(home / "data"),
        )
        assert any("NO API KEYS" in line["event"] for line in family.seen)
        family.url = listening["url"]
        family.wait_for("ready")
        assert [shard[0] for shard in family.ask()["shards"]] == ["READY", "READY"]


def test_every_process_may_open_as_many_files_as_the_hard_limit_says(home: Path) -> None:
    with Family(home, through=["prlimit", "--nofile=256:4000"]) as family:
        family.started()
        assert (
            family.events("file limit set")[0] | {"was": 256, "soft_limit": 4000}
            == family.events("file limit set")[0]
        )
        for pid in family.pids().values():
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (4000, 4000)


def test_every_process_has_its_name_its_signals_and_only_its_own_sockets(home: Path) -> None:
    with Family(home, FRONTS="2", TOPICS_API_KEYS="hunter2:r,other") as family:
        family.started()
        pids = family.pids() | {"supervisor": family.process.pid}
        for name, pid in pids.items():
            deadline = time.monotonic() + 10  # a child has its name a moment after it has begun
            while (
                Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
                != f"topics: {name}".encode()
            ):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert sorted(pids) == ["front 0", "front 1", "shard 0", "shard 1", "supervisor"]
        for line in family.events("at work"):
            ignored, handled = line["ignored"], line["ignored"] | line["caught"]
            assert line["blocked"] == 0
            assert ignored & 1 << signal.SIGINT - 1
            assert ignored & 1 << signal.SIGHUP - 1
            assert not handled & 1 << signal.SIGTERM - 1
            assert not handled & 1 << signal.SIGCHLD - 1
        answer = family.ask()
        assert answer["keys"] == 2
        listening = [
            line.split()
            for line in Path("/proc/net/tcp").read_text().splitlines()
            if " 0A " in line
        ]
        inodes = {
            f"socket:[{line[9]}]"
            for line in listening
            if line[1].endswith(f":{int(family.url.rsplit(':')[-1]):04X}")
        }
        assert len(inodes) == 2, "one listening socket for each front"
        assert len(inodes & set(answer["fds"])) == 1
        shard_fds = {
            str(entry.readlink()) for entry in Path(f"/proc/{pids['shard 0']}/fd").iterdir()
        }
        assert not inodes & shard_fds
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert "hunter2" not in json.dumps(family.seen)


def test_a_second_server_on_the_data_directory_is_refused_and_names_the_first(home: Path) -> None:
    with Family(home) as first:
        first.started()
        with Family(home) as second:
            assert second.end() == 1
            assert second.events("start failed")[0]["reason"].endswith(
                f"is in use by process {first.process.pid}"
            )
        assert first.ask()["shards"]


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_a_taken_port_is_refused_also_when_ports_could_be_shared(home: Path, fronts: str) -> None:
    with Family(home, FRONTS=fronts) as first:
        first.started()
        (home / "b").mkdir()
        with Family(home / "b", FRONTS=fronts, TOPICS_PORT=first.url.rsplit(":")[-1]) as second:
            assert second.end() == 1
            assert "Address already in use" in second.events("start failed")[0]["reason"]


def test_the_stored_shard_count_stays_and_it_says_so(home: Path) -> None:
    with Family(home) as family:
        family.started().signal(signal.SIGTERM)
        assert family.end() == 0
    with Family(home, TOPICS_SHARDS="5") as family:
        kept = family.wait_for("stored shard count kept")
        assert (kept["shards"], kept["asked_for"]) == (2, 5)
        assert len(family.started().ask()["shards"]) == 2


def test_an_unknown_format_version_is_refused_with_status_3(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "meta").write_bytes(encode_meta(2, version=7))
    with Family(home) as family:
        assert family.end() == 3
        assert "format version is 7" in family.events("data directory damaged")[0]["reason"]


# Deaths


def test_a_killed_shard_is_back_within_two_seconds_and_the_others_notice_nothing(
    home: Path,
) -> None:
    with Family(home, FRONTS="1") as family:
        family.started()
        before = family.ask()
        assert before["sessions"] == [[1, 1]]
        killed_at = time.monotonic()
        os.kill(before["shards"][1][1], signal.SIGKILL)
        after = family.ask_until(
            lambda seen: seen["shards"][1][2] == 2 and seen["shards"][1][0] == "READY"
        )
        assert time.monotonic() - killed_at < 2.0
        assert after["sessions"] == [[1, 2]]
        assert after["shards"][0] == before["shards"][0]
        assert after["pid"] == before["pid"]
        assert after["shards"][1][1] != before["shards"][1][1]
        died = family.wait_for("process died", child="shard 1")
        assert (died["signal"], died["child_pid"], died["again_in_s"]) == (
            "SIGKILL",
            before["shards"][1][1],
            0.0,
        )


def test_the_restart_of_a_front_refuses_nobody(home: Path) -> None:
    with Family(home) as family:
        family.started()
        family.order("front-0", "wait")
        os.kill(family.pids()["front 0"], signal.SIGKILL)
        family.wait_for("process died", child="front 0")
        waiting = [family.connect() for _ in range(20)]
        family.order("front-0", "")
        for connection in waiting:
            with connection, connection.makefile() as answer:
                assert json.loads(answer.readline())["sessions"] == [[2, 2]]


def test_what_dies_again_and_again_is_restarted_with_growing_delays(home: Path) -> None:
    with Family(home) as family:
        family.started()
        family.order("shard-0", "exit 1")
        os.kill(family.pids()["shard 0"], signal.SIGTERM)
        delays = [family.wait_for("process died", child="shard 0")["again_in_s"] for _ in range(5)]
        assert delays == [0.1, 0.2, 0.4, 0.8, 1.6] or delays == [0.0, 0.1, 0.2, 0.4, 0.8]
        family.order("shard-0", "")
        family.ask_until(lambda seen: seen["shards"][0][0] == "READY")


@pytest.mark.parametrize("lived_s", [0.0, 1.5, 29.0])
def test_delays_double_up_to_five_seconds_however_long_each_life_was(lived_s: float) -> None:
    child = a_child()
    delays, now = [], 100.0
    for _ in range(10):
        now = live(child, now, lived_s)
        delays.append(child.schedule(now))
        assert child.due == now + delays[-1]
    assert delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_half_a_minute_of_service_forgives_and_half_a_minute_of_recovery_does_not() -> None:
    child = a_child()
    delays, now = [], 100.0
    for lived_s, state in [
        (0.0, "READY"),
        (0.0, "READY"),
        (60.0, "RECOVERING"),
        (30.0, "READY"),
        (0.0, "READY"),
    ]:
        now = live(child, now, lived_s, ShardState[state])
        delays.append(child.schedule(now))
    assert delays == [0.0, 0.1, 0.2, 0.0, 0.1]


def a_child() -> Child:
    return Child(shard_id(0), Board.create(1, 1), lambda _index: None)


def live(child: Child, now: float, lived_s: float, state: ShardState = ShardState.READY) -> float:
    """One life of a child; when it dies."""
    child.spawned_at, child.up_at = now, math.inf
    assert isinstance(child.words, ShardWords)
    child.words.state = state
    child.watch(now)
    return now + lived_s


def test_an_exception_in_a_child_is_logged_with_its_traceback_and_without_tokens(
    home: Path,
) -> None:
    with Family(home) as family:
        family.order("shard-1", "raise")
        failed = family.wait_for("process failed")
        assert failed["process"] == "shard 1"
        assert "Traceback" in failed["exception"]
        assert "RuntimeError: told to fail" in failed["exception"]
        assert "s3cret" not in failed["exception"]
        assert family.wait_for("process died", child="shard 1")["exit_code"] == 1


def test_a_shard_with_damaged_data_stays_down_and_the_others_serve(
    home: Path, tmp_path: Path
) -> None:
    systemd = Systemd(str(tmp_path / "notify"))
    with Family(home, NOTIFY_SOCKET=systemd.name) as family, systemd.socket:
        family.order("shard-1", "exit 3")
        family.url = family.wait_for("listening")["url"]
        given_up = family.wait_for("damaged shard stays down")
        assert (given_up["child"], given_up["level"]) == ("shard 1", "critical")
        assert family.wait_for("ready")["damaged"] == [1]
        seen = systemd.until("STATUS=serving, 1 of 2 shards; shard 1 is damaged, see the log")
        assert "READY=1" in seen
        os.kill(family.pids()["shard 0"], signal.SIGKILL)
        shards = family.ask_until(
            lambda seen: seen["shards"][0][2] == 2 and seen["shards"][0][0] == "READY"
        )["shards"]
        assert shards[1] == ["DAMAGED", 0, 1], "it is not started again"
        family.signal(signal.SIGTERM)
        assert family.end() == 3
        ended = {line["child"]: line["exit_code"] for line in family.events("process ended")}
        assert ended == {"front 0": 0, "shard 0": 0}, "the others are drained, not killed"


def test_a_server_without_a_shard_whose_data_can_be_trusted_stops_with_status_3(home: Path) -> None:
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
            wait_until_gone(pid)


# Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_drains_the_fronts_first_and_the_shards_after_them(home: Path, number: int) -> None:
    with Family(home, FRONTS="2") as family:
        family.started().signal(number)
        assert family.end() == 0
        order = [line["child"] for line in family.events("process ended")]
        assert {*order[:2]} == {"front 0", "front 1"}
        assert {*order[2:]} == {"shard 0", "shard 1"}
        for line in family.events("front stops"):
            assert line["draining"] is True
            assert line["shards_alive"] == [True, True]
        with pytest.raises(ConnectionRefusedError):
            family.connect()


def test_a_hang_up_means_nothing_to_a_server_that_was_started_with_nohup(home: Path) -> None:
    with Family(home, through=["nohup"]) as family:
        family.started().signal(signal.SIGHUP)
        assert family.ask()["shards"]
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert [line["signal"] for line in family.events("signal received")] == ["SIGTERM"]


def test_what_does_not_stop_is_killed_when_the_drain_is_over(home: Path) -> None:
    with Family(home, TOPICS_DRAIN_MS="500") as family:
        family.order("front-0", "stubborn")
        family.started()
        began = time.monotonic()
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert 0.5 <= time.monotonic() - began < 5
        ends = {line["child"]: line.get("signal", "") for line in family.events("process ended")}
        assert ends == {"front 0": "SIGKILL", "shard 0": "", "shard 1": ""}
        assert family.events("drain time over, killing")[0]["children"] == ["front 0"]


def test_a_second_interrupt_kills_at_once(home: Path) -> None:
    with Family(home) as family:
        family.order("front-0", "stubborn")
        family.started().signal(signal.SIGINT)
        family.wait_for("signal received", signal="SIGINT")
        family.signal(signal.SIGINT)
        assert family.end() == 130
        for pid in family.pids().values():
            wait_until_gone(pid)


def test_a_stop_while_a_shard_waits_for_its_restart_does_not_wait_for_it(home: Path) -> None:
    with Family(home) as family:
        family.order("shard-0", "exit 1")
        while family.wait_for("process died", child="shard 0")["again_in_s"] < 0.4:
            pass
        family.signal(signal.SIGTERM)
        assert family.end() == 0


# systemd


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.name = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(WITHIN_S)

    def next(self) -> str:
        return self.socket.recv(4096).decode()

    def until(self, line: str) -> list[str]:
        """Everything up to the next such line."""
        seen: list[str] = []
        while not seen or seen[-1] != line:
            seen.append(self.next())
        return seen


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    listener = Systemd(
        str(tmp_path / "notify") if request.param == "path" else f"@topics-test-{os.getpid()}"
    )
    yield listener
    listener.socket.close()


def test_systemd_hears_replay_ready_watchdog_and_stopping(home: Path, systemd: Systemd) -> None:
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


def test_a_child_without_a_sign_of_life_is_told_of_killed_and_replaced_and_systemd_hears_on(
    home: Path, tmp_path: Path
) -> None:
    systemd = Systemd(str(tmp_path / "notify"))
    with (
        Family(
            home,
            NOTIFY_SOCKET=systemd.name,
            WATCHDOG_USEC="300000",
            STALLED_S="0.5",
            KILL_AFTER_S="1.0",
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
        systemd.until("WATCHDOG=1")
        family.ask_until(lambda seen: seen["shards"][0][0] == "READY")


def test_a_child_that_is_stopped_for_a_while_goes_on(home: Path) -> None:
    with Family(home, STALLED_S="0.5") as family:
        family.started()
        stopped = family.pids()["shard 1"]
        os.kill(stopped, signal.SIGSTOP)
        family.wait_for("process stalled")
        os.kill(stopped, signal.SIGCONT)
        family.wait_for("process answers again")
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert not family.events("process died")


def test_a_machine_that_was_suspended_kills_nobody(home: Path) -> None:
    with Family(home, STALLED_S="3", KILL_AFTER_S="3") as family:
        family.started()
        everyone = [family.process.pid, *family.pids().values()]
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4)  # longer than any of them may be silent
        for pid in everyone:  # the supervisor first, when all heartbeats are old
            os.kill(pid, signal.SIGCONT)
        family.ask()
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert not family.events("process stalled")
        assert not family.events("process died")


def test_a_lost_systemd_is_told_once_and_serving_goes_on(home: Path) -> None:
    with Family(home, NOTIFY_SOCKET=str(home / "nobody")) as family:
        family.started()
        family.ask()
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert len(family.events("systemd cannot be notified")) == 1
