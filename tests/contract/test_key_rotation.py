"""SIGHUP replaces keys while clients use them (§0.2, §12)."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_backup import is_truncated, raw
from tests.support.api import SLACK_S, Answer, Api, ok, refused
from tests.support.queues import Queue, Work
from tests.support.server import Server
from tests.support.sse import ERROR, Stream, session
from tests.support.ws import Socket

pytestmark = pytest.mark.slow

FIXED = "fixed-key"
WITHIN_S = 1.0  # in which the signal must take effect


class Rotation:
    """A server and its key file."""

    def __init__(self, server: Server, file: Path) -> None:
        self.server, self.file = server, file
        self._numbers = itertools.count()

    def replace(self, *entries: str) -> None:
        """Replace the keys of the file, and return when they are in effect.

        The key of the environment stays valid. A new key is added to detect when the front uses the
        new keys.
        """
        probe = f"probe-{next(self._numbers)}"
        self.file.write_text("\n".join([*entries, f"{probe}:rw"]))
        self.reload("keys reloaded")
        self.wait_for_status(probe, 200)

    def reload(self, event: str) -> dict[str, Any]:
        """Make the server read the file again, and return the log line with the result."""
        seen = len(self.events(event))
        os.kill(self.server.pid, signal.SIGHUP)
        deadline = time.monotonic() + WITHIN_S + SLACK_S
        while len(self.events(event)) == seen:
            assert time.monotonic() < deadline, self.server.log_tail
            time.sleep(0.01)
        return self.events(event)[-1]

    def events(self, event: str) -> list[dict[str, Any]]:
        assert self.server.log is not None
        return [line for line in self.server.log.events() if line["event"] == event]

    def api(self, token: str) -> Api:
        return Api(self.server.address, token=token)

    def wait_for_status(self, token: str, status: int) -> None:
        """Append with the key until the response has this status."""
        deadline = time.monotonic() + WITHIN_S + SLACK_S
        with self.api(token) as api:
            while (answer := api.append("a", 1)).status != status:
                assert time.monotonic() < deadline, answer
                time.sleep(0.01)


@pytest.fixture(scope="module")
def rotation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotation]:
    home = tmp_path_factory.mktemp("rotation")
    file = home / "keys"
    file.write_text("first")
    with Server(
        home / "data", api_keys=FIXED, api_keys_file=file, shards=1, max_sse_connections_per_key=3
    ) as server:
        with Api(server.address, token=FIXED) as api:
            ok(api.append("a", 1), 201)
            for name in ("q", "idle"):
                Queue.create(api, name)
        yield Rotation(server, file)


def test_new_keys_work_and_removed_ones_get_401(rotation: Rotation) -> None:
    rotation.replace("first", "second:rw:a")
    with rotation.api("first") as first, rotation.api("second") as second:
        ok(first.append("a", 1))
        ok(second.append("a", 1))
        rotation.replace("sha256:" + "0" * 64, "second:r:a", "third")
        refused(first.append("a", 1), 401, "unauthorized")
        refused(second.append("a", 1), 403, "forbidden")
        ok(second.diff("a"))
    with rotation.api("third") as third, rotation.api(FIXED) as fixed:
        ok(third.append("a", 1))
        ok(fixed.append("a", 1))


Streams = tuple[Stream, Work, Socket]


@pytest.fixture
def open_streams(rotation: Rotation) -> Iterator[Callable[[str], Streams]]:
    """Return a function that opens one stream of each kind with a key."""
    address = rotation.server.address
    with ExitStack() as opened:

        def open_streams(token: str) -> Streams:
            api = opened.enter_context(rotation.api(token))
            watched = Stream(address, session(api, ["a"])["stream_url"], token=token)
            worked = Work(Queue(api, "q"), "w", token=token)
            socket = Socket(address, token=token)
            for stream in (watched, worked, socket):
                opened.enter_context(stream)
            return watched, worked, socket

        yield open_streams


def assert_ended(streams: Streams, message: str) -> None:
    for stream in streams[:2]:
        *_, last = stream.events()
        assert (last.event, last.json()) == (ERROR, {"code": 401, "error": message})
    error = streams[2].message("error")
    assert (error["code"], error["message"]) == ("unauthorized", message)
    assert streams[2].closed() == 1008


def assert_continues(streams: Streams, api: Api) -> None:
    ok(api.append("a", "still here"))
    Queue(api, "q").push("work")
    while '"still here"' not in (streams[0].event().data or ""):
        pass
    assert streams[1].jobs(1)[0]["data"] == "work"
    assert streams[2].request("ping", "1")["op"] == "pong"


def test_streams_of_removed_and_changed_keys_end_within_a_second_and_others_continue(
    rotation: Rotation, open_streams: Callable[[str], Streams]
) -> None:
    rotation.replace("removed", "changed:rw")
    removed, changed, unchanged = [open_streams(token) for token in ("removed", "changed", FIXED)]
    os.kill(rotation.server.pid, signal.SIGHUP)  # two concurrent signals have the effect of one
    began = time.monotonic()
    rotation.replace("changed:r")
    assert_ended(removed, "this key was removed")
    assert_ended(changed, "the rights of this key have changed")
    assert time.monotonic() - began < WITHIN_S + SLACK_S
    with rotation.api(FIXED) as api:
        assert_continues(unchanged, api)
    rotation.replace("removed", "changed:rw")
    open_streams("removed")  # the slots of the three closed streams are free again


def test_waiting_calls_of_removed_keys_end_with_401(rotation: Rotation) -> None:
    rotation.replace("removed", "unchanged")

    with rotation.api(FIXED) as api:
        head = api.state("a")["head_seq"]

    def poll(token: str) -> Answer:
        with rotation.api(token) as api:
            return api.diff("a", from_seq=head, wait_ms=15_000)

    def claim() -> Answer:
        with rotation.api("removed") as api:
            return api.call("POST", "/v0/topics/idle/claim", {"node": "w", "wait_ms": 15_000})

    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(poll, "removed"), pool.submit(claim)]
        unchanged = pool.submit(poll, "unchanged")
        time.sleep(0.3)  # no response shows that a call waits
        rotation.replace("unchanged")
        for end in ends:
            refused(end.result(WITHIN_S + SLACK_S), 401, "unauthorized")
        assert ok(unchanged.result(SLACK_S))["records"], "the probe appended no record"


@pytest.mark.parametrize("content", [None, "", "hunter2:fly", "first\nfirst:r", f"{FIXED}:r"])
def test_an_invalid_file_changes_nothing(rotation: Rotation, content: str | None) -> None:
    rotation.replace("first:rw")
    if content is None:
        rotation.file.unlink()
    else:
        rotation.file.write_text(content)
    entry = rotation.reload("keys not reloaded")
    assert entry["level"] == "error"
    rotation.wait_for_status("first", 200)
    rotation.wait_for_status(FIXED, 200)
    assert "hunter2" not in rotation.server.logged


def test_the_file_may_be_a_link_into_a_folder_that_is_replaced(rotation: Rotation) -> None:
    """Kubernetes updates mounted secrets in this way."""
    home = rotation.file.parent
    for name in ("one", "two"):
        (home / name).mkdir()
        (home / name / "keys").write_text(f"link-{name}")
    (home / "now").symlink_to("one")
    (home / "link").symlink_to("now/keys")
    (home / "link").replace(rotation.file)
    try:
        rotation.reload("keys reloaded")
        rotation.wait_for_status("link-one", 200)
        (home / "next").symlink_to("two")
        (home / "next").replace(home / "now")
        rotation.reload("keys reloaded")
        rotation.wait_for_status("link-two", 200)
        rotation.wait_for_status("link-one", 401)
    finally:
        rotation.file.unlink()


def test_removing_a_key_aborts_its_backup(rotation: Rotation) -> None:
    rotation.replace("leaving")
    with rotation.api("leaving") as api:
        ok(api.append("large", *("x" * 100_000 for _ in range(300))), 201)
    client = raw(rotation.server, "leaving")
    rotation.replace("another")
    assert is_truncated(client)
    with rotation.api("another") as api:
        assert api.call("GET", "/v0/backup").status == 200, "the aborted backup still has its slot"
