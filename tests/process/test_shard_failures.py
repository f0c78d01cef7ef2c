"""A complete server with a stopped shard, with damaged data, and with clients that connect during
the drain.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.family_support import wait_until_exited
from tests.support.api import Answer, Api, Wire, ok, request
from tests.support.queues import until
from tests.support.server import STOP_S, Server
from tests.support.sse import Stream, session
from topics.actors.link.liveness import STALLED_S
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.formats.names import shard_of

pytestmark = pytest.mark.slow

TOPICS = {shard_of(name, 2): name for name in ("a", "b", "c", "d", "e")}  # One topic of each shard
AT_ONCE_S = 5.0  # A drain takes 10 s


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        yield server


def unready(answer: Answer, reason: str) -> dict[str, Any]:
    """Check for a 503 `not_ready` with this reason, and return its details."""
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["detail"]["reason"]) == (
        503,
        "not_ready",
        reason,
    ), answer
    assert int(answer.headers["retry-after"]) >= 1
    return dict(error["detail"])


def in_background(call: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def test_calls_of_a_stopped_shard_end_soon_and_it_serves_again_when_continued(
    server: Server,
) -> None:
    with (
        Api(server.address) as api,
        Api(server.address) as other,
        contextlib.ExitStack() as streams,
    ):
        waiting = streams.enter_context(Api(server.address, timeout_s=40))
        for topic in TOPICS.values():
            ok(api.append(topic, 1), 201)
        thread, poll = in_background(lambda: waiting.diff(TOPICS[0], from_seq=1, wait_ms=25_000))
        stream = streams.enter_context(
            Stream(server.address, session(api, TOPICS.values())["stream_url"])
        )
        assert sorted(stream.read_until_caught_up(TOPICS.values()).data()) == [1, 1]
        stopped = server.roles()["shard 0"]
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        unready(api.append(TOPICS[0], 2), "stalled")
        assert time.monotonic() - began < 15
        began = time.monotonic()
        unready(api.append(TOPICS[0], 3), "stalled")
        ok(api.append(TOPICS[1], 4))
        assert [record["data"] for record in stream.records(1)] == [4]
        detail = unready(other.call("GET", "/v0/ready"), "stalled")
        assert detail["shards"] == [{"shard": 0, "state": "stalled"}]
        assert time.monotonic() - began < 2 * STALLED_S, (
            "a later call waited for the stopped shard, too"
        )
        os.kill(stopped, signal.SIGCONT)
        server.wait_ready()
        ok(api.append(TOPICS[0], 5))
        thread.join()
        assert [record["data"] for record in stream.records(2)] == [2, 5], (
            "the stream missed a record"
        )
        assert server.roles()["shard 0"] == stopped
        records = [record["data"] for record in api.read(TOPICS[0])]
        assert records == [1, 2, 5], (
            "only the call that timed out is executed when the shard continues"
        )
        assert ok(poll[0])["records"][0]["data"] == 2
    server.stop()


def test_a_shard_with_damaged_data_stays_down_while_the_others_serve(server: Server) -> None:
    with Api(server.address) as api:
        for topic in TOPICS.values():
            ok(api.append(topic, 1), 201)
    server.stop()
    (log,) = (server.data_dir / "wal" / "01").glob("*.wal")
    with log.open("r+b") as file:
        file.seek(FILE_HEADER_BYTES)  # The first frame, which the checkpoint states to be synced
        file.write(b"\xff" * 8)
    started = server.spawn()
    url = started.event("listening", 20)["url"]
    server.host, server.port = "127.0.0.1", int(url.rpartition(":")[2])
    damage = started.event("data damaged", 20)
    assert damage["path"] == str(log)
    assert isinstance(damage["offset"], int)
    assert f"topics repair --dry-run {server.data_dir}" in damage["repair"]
    assert started.event("ready with damaged shards", 20)["damaged"] == [1]
    with Api(server.address) as api:
        unready(api.append(TOPICS[1], 2), "damaged")
        unready(api.diff(TOPICS[1]), "damaged")
        # The front may connect to the other shard shortly after the event.
        until(lambda: api.append(TOPICS[0], 2).status == 200)
        detail = unready(api.call("GET", "/v0/ready"), "damaged")
        assert detail["shards"] == [{"shard": 1, "state": "damaged"}]
        assert api.call("GET", "/v0/health").status == 200
    server.terminate()
    assert server.wait_exit(STOP_S) == 3


def test_a_shard_without_file_permissions_reports_it_and_starts_when_they_are_granted(
    server: Server,
) -> None:
    with Api(server.address) as api:
        for topic in TOPICS.values():
            ok(api.append(topic, 1), 201)
    server.stop()
    (log,) = (server.data_dir / "wal" / "01").glob("*.wal")
    mode = log.stat().st_mode
    log.chmod(0)
    if os.geteuid() == 0:  # Root opens any file, unless these capabilities are removed
        program = shutil.which("setpriv")
        if program is None:
            pytest.skip("setpriv is not installed")
        server.zygote = None
        without = "--bounding-set=-dac_override,-dac_read_search"
        server.command = [program, without, *server.command]
    started = server.spawn()
    url = started.event("listening", 60)["url"]
    server.host, server.port = "127.0.0.1", int(url.rpartition(":")[2])
    assert started.event("start failed", 60)["path"] == str(log)
    with Api(server.address) as api:
        until(lambda: api.append(TOPICS[0], 2).status, lambda status: status == 200, 60)
        for _ in range(20):  # Also while the shard is restarted
            detail = unready(api.call("GET", "/v0/ready"), "permission_denied")
            assert detail["shards"] == [{"shard": 1, "state": "permission_denied"}]
            unready(api.append(TOPICS[1], 2), "permission_denied")
        doctor = [sys.executable, "-m", "topics", "doctor", "--url", url]
        shown = subprocess.run(doctor, capture_output=True, text=True, check=False).stdout
        assert "shard 1 is permission_denied" in shown
        assert "chown" in shown
        log.chmod(mode)
        server.wait_ready()
        assert [record["data"] for record in api.read(TOPICS[1])] == [1]


def test_clients_that_connect_during_the_drain_get_503_and_are_refused_afterwards(
    server: Server,
) -> None:
    with Wire(server.address) as slow:
        append_bytes = request("POST", f"/v0/topics/{TOPICS[0]}", b'{"records":[{"data":1}]}')
        slow.send(append_bytes[:-2])
        with Api(server.address) as api:
            ok(api.call("GET", "/v0/health"))
        server.terminate()
        while True:
            began = time.monotonic()
            try:
                with Api(server.address) as api:
                    answer = api.append(TOPICS[1], 1)
            except (BrokenPipeError, ConnectionResetError):
                continue  # Connected before the drain, without a request when it began
            assert time.monotonic() - began < AT_ONCE_S
            if answer.status == 503:
                break
        assert answer.json()["error"]["code"] == "shutting_down"
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        with Api(server.address) as api:
            assert api.put(TOPICS[1], {}).json()["error"]["code"] == "shutting_down"
        slow.send(append_bytes[-2:])
        ok(slow.answer("POST"), 201)
        front = server.roles().get("front 0")
    if front is not None:
        wait_until_exited(front)
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError), Api(server.address) as api:
        api.call("GET", "/v0/health")
    assert time.monotonic() - began < AT_ONCE_S
    server.wait_stopped()
