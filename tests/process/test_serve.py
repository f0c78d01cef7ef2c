"""The start of a server: its checks, its log lines, and the resources of its children."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from tests.process.family_support import Family
from topics.storage.data_dir import encode_meta

pytestmark = pytest.mark.slow


def test_a_server_logs_its_url_and_is_ready_when_every_shard_is_ready(home: Path) -> None:
    with Family(home) as family:
        listening = family.wait_for("listening")
        assert listening["url"].startswith("http://127.0.0.1:")
        assert (listening["shards"], listening["auth"], listening["data_dir"]) == (
            2,
            "none",
            str(home / "data"),
        )
        assert any(line["event"] == "authentication disabled" for line in family.seen)
        family.url = listening["url"]
        family.wait_for("ready")
        answer = family.front_state()
        assert [shard[0] for shard in answer["shards"]] == ["READY", "READY"]
        assert (answer["keys"], answer["dumpable"]) == (0, 1)


def test_every_process_raises_its_file_limit_to_the_hard_limit(home: Path) -> None:
    with Family(home, through=["prlimit", "--nofile=256:4000"]) as family:
        family.started()
        assert (
            family.events("file limit set")[0] | {"previous_limit": 256, "soft_limit": 4000}
            == family.events("file limit set")[0]
        )
        for pid in family.pids().values():
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (4000, 4000)


def environ_of(pid: int) -> bytes:
    """Return the environment of a process, or nothing if it is hidden (from all users but root,
    with keys).
    """
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return b""


def test_every_process_has_its_own_name_signals_and_sockets(home: Path) -> None:
    with Family(home, TOPICS_API_KEYS="hunter2:r,other") as family:
        family.started()
        pids = family.pids() | {"supervisor": family.process.pid}
        for name, pid in pids.items():
            deadline = time.monotonic() + 10  # A child sets its name shortly after its start
            while (
                Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
                != f"topics: {name}".encode()
            ):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert b"hunter2" not in environ_of(pid)
        assert sorted(pids) == ["front 0", "shard 0", "shard 1", "supervisor"]
        for line in family.events("at work"):
            ignored, handled = line["ignored"], line["ignored"] | line["caught"]
            assert line["blocked"] == 0
            assert ignored & 1 << signal.SIGINT - 1
            assert ignored & 1 << signal.SIGHUP - 1
            assert not handled & 1 << signal.SIGTERM - 1
            assert not handled & 1 << signal.SIGCHLD - 1
        answer = family.front_state()
        assert (answer["keys"], answer["dumpable"]) == (2, 0)
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
        assert len(inodes) == 1
        assert len(inodes & set(answer["fds"])) == 1
        for line in family.events("at work"):
            assert len(inodes & {*line["fds"]}) == line["process"].startswith("front")
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert "hunter2" not in json.dumps(family.seen)


def test_a_second_server_on_the_data_directory_is_refused_with_the_pid_of_the_first(
    home: Path,
) -> None:
    with Family(home) as first:
        first.started()
        with Family(home) as second:
            assert second.end() == 1
            assert second.events("start failed")[0]["reason"].endswith(
                f"is in use by process {first.process.pid}"
            )
        assert first.front_state()["shards"]


def test_a_port_in_use_is_refused(home: Path) -> None:
    with Family(home) as first:
        first.started()
        (home / "b").mkdir()
        with Family(home / "b", TOPICS_PORT=first.url.rsplit(":")[-1]) as second:
            assert second.end() == 1
            assert "Address already in use" in second.events("start failed")[0]["reason"]


def test_the_stored_shard_count_is_kept_and_logged(home: Path) -> None:
    with Family(home) as family:
        family.started().signal(signal.SIGTERM)
        assert family.end() == 0
    with Family(home, TOPICS_SHARDS="5") as family:
        kept = family.wait_for("stored shard count kept")
        assert (kept["shards"], kept["configured"]) == (2, 5)
        assert len(family.started().front_state()["shards"]) == 2


@pytest.mark.parametrize(
    ("origins", "keys", "is_warned"),
    [("*", "", True), ("https://app.example", "", False), ("*", "secret", False)],
)
def test_any_origin_without_keys_logs_a_warning(
    home: Path, origins: str, keys: str, is_warned: bool
) -> None:
    more = {"TOPICS_API_KEYS": keys} if keys else {}
    with Family(home, TOPICS_CORS_ORIGINS=origins, **more) as family:
        family.wait_for("listening")
        warnings = [
            event for event in family.seen if event["event"] == "cross-origin access unrestricted"
        ]
        assert bool(warnings) is is_warned
        assert all("TOPICS_CORS_ORIGINS" in event["reason"] for event in warnings)


def test_an_unknown_format_version_is_refused_with_status_3(home: Path) -> None:
    (home / "data").mkdir()
    meta = encode_meta(2)
    (home / "data" / "meta").write_bytes(meta[:8] + b"\7" + meta[9:])
    with Family(home) as family:
        assert family.end() == 3
        (refused,) = family.events("data directory damaged")
        reason = "offset 8: has format version 7; this program reads version 1"
        assert refused["reason"] == f"{home / 'data' / 'meta'}: {reason}"


def test_more_shards_than_the_open_file_limit_allows_are_refused(home: Path) -> None:
    with Family(home, through=["prlimit", "--nofile=256:256"], TOPICS_SHARDS="16") as family:
        assert family.end() == 1
        assert family.events("start failed")[0]["reason"].startswith(
            "16 shards need a limit of 401 open files, but it is 256:"
        )
        assert not family.pids()


def test_a_hang_up_reloads_the_keys_also_for_a_front_that_starts_later(home: Path) -> None:
    """The first signal is sent right after the settings are read, and the others when the server
    is ready.
    """
    file = home / "keys"
    file.write_text("one")
    with Family(home, TOPICS_API_KEYS="fixed", TOPICS_API_KEYS_FILE=str(file)) as family:
        family.wait_for("file limit set")
        file.write_text("one\ntwo")
        family.signal(signal.SIGHUP)
        family.url = family.wait_for("listening")["url"]
        assert family.wait_for("keys reloaded")["keys"] == 3
        family.wait_for_state(lambda seen: seen["keys"] == 3)
        file.write_text("hunter2:fly")
        family.signal(signal.SIGHUP)
        failed = family.wait_for("keys not reloaded")
        assert failed["level"] == "error"
        assert failed["reason"].startswith(f"TOPICS_API_KEYS_FILE='{file}': entry 1: a scope")
        assert family.front_state()["keys"] == 3
        file.write_text("one\ntwo\nthree\nfour")
        family.signal(signal.SIGHUP)
        family.wait_for("keys reloaded")
        before = family.front_state()["pid"]
        os.kill(before, signal.SIGKILL)
        family.wait_for_state(lambda seen: seen["pid"] != before and seen["keys"] == 5)
        family.signal(signal.SIGTERM)
        assert family.end() == 0
        assert "hunter2" not in json.dumps(family.seen)
