"""An operator moves, replaces or removes the data directory of a running server. The server stops
writing and does not change the files that are at the path afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.server import START_S, Server, kill_one
from topics.errors import ExitCode

pytestmark = pytest.mark.slow

CLASSES = ("fsync", "disk", "memory", "ephemeral")
LOST = "data directory lost"


def _move(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def _replace(data: Path) -> None:
    _move(data)
    shutil.copytree(data.with_name("elsewhere"), data, ignore=_ignored_files)


def _ignored_files(folder: str, names: list[str]) -> list[str]:
    """Ignore files that the running server removes during the copy."""
    return [name for name in names if not Path(folder, name).exists() or name.endswith(".ckpt")]


def _remove(folder: Path) -> None:
    """Remove a folder like ``rm -rf``, and repeat it while the server adds files."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def _empty(data: Path) -> None:
    for path in sorted(data.iterdir()):
        _remove(path) if path.is_dir() else path.unlink()


def _empty_and_fill(data: Path) -> None:
    shutil.copytree(data, data.with_name("copy"), ignore=_ignored_files)
    _empty(data)
    shutil.copytree(data.with_name("copy"), data, dirs_exist_ok=True)


def _unlink_lock(data: Path) -> None:
    (data / "LOCK").unlink()


def _replace_a_folder(data: Path) -> None:
    folder = data / "segment" / "00"
    folder.rename(data / "segment-00")
    folder.mkdir()


def _unlink_the_log(data: Path) -> None:
    for path in (data / "wal" / "00").glob("*.wal"):
        path.unlink()


ACTIONS = (_remove, _move, _replace, _empty, _empty_and_fill, _unlink_lock)
SHARD_ACTIONS = (_replace_a_folder, _unlink_the_log)


def _image(path: Path, shards: int = 2) -> dict[str, str]:
    """Return every name at a path with a digest of each file, for all shards or only the first."""
    return {
        str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest()
        if each.is_file()
        else ""
        for each in sorted(path.rglob("*"))
        if shards == 2 or "01" not in each.parts
    }


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.02)


def _loss_events(server: Server) -> list[dict[str, Any]]:
    assert server.log is not None
    return [event for event in server.log.events() if event.get("event") == LOST]


def _states(api: Api) -> dict[int, str]:
    """Return the states of the shards that do not accept all writes."""
    rows = ok(api.call("GET", "/v0/ready")).get("shards", [])
    return {row["shard"]: row["state"] for row in rows}


def _topics(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "topics", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    """A server of two shards with small log files, so that it constantly seals and writes
    checkpoints.
    """
    with Server(data, shards=2, wal_file_bytes=1 << 16) as running:
        yield running


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(server.address) as client:
        yield client


def _fill(api: Api, count: int = 60) -> None:
    """Create topics in both shards, with full log files."""
    for name in ("a", "b", "c", "d", "e", "f"):
        api.put(name, {"durability": "fsync"})
        for number in range(count):
            ok(api.append(name, [number, "x" * 2000]))


@pytest.mark.parametrize("act", [*ACTIONS, *SHARD_ACTIONS])
def test_an_idle_server_detects_that_its_directory_is_lost_and_then_serves_only_reads(
    server: Server, api: Api, data: Path, act: Callable[[Path], None]
) -> None:
    for name in CLASSES:
        ok(api.put(name, {"durability": name}), 201)
        ok(api.append(name, 1))
    shards = 1 if act in SHARD_ACTIONS else 2
    act(data)
    at_path = _image(data, shards)
    _wait_until(lambda: _states(api) == dict.fromkeys(range(shards), "directory_lost"))
    for name in CLASSES if shards == 2 else ():
        error = refused(api.append(name, "lost"), 503, "not_ready")
        assert any(word in error["message"] for word in ("directory", "LOCK", "files"))
        assert api.read(name)[0]["data"] == 1
        refused(api.put(f"new-{name}", {"durability": name}), 503, "not_ready")
        refused(api.delete(name), 503, "not_ready")
    result = _topics("doctor", "--url", f"http://{server.host}:{server.port}")
    assert "shard 0 is directory_lost" in result.stdout
    server.stop()
    assert len(_loss_events(server)) == shards, "each shard must log the loss once"
    assert _image(data, shards) == at_path


def test_a_write_acknowledged_as_synced_was_written_before_the_directory_was_lost(
    server: Server, api: Api, data: Path
) -> None:
    """This also holds before the next idle check."""
    ok(api.put("a", {"durability": "fsync"}), 201)
    for _ in range(20):
        ok(api.append("a", "kept"))
    _move(data)
    refused(api.append("a", "lost"), 503, "not_ready")


def test_a_stop_right_after_the_directory_was_moved_is_orderly(
    server: Server, api: Api, data: Path
) -> None:
    """The stop itself detects the move, because it syncs."""
    ok(api.put("a", {"durability": "disk"}), 201)
    ok(api.append("a", 1))
    _move(data)
    server.stop()
    assert "process failed" not in server.logged
    assert not data.exists()
    with Server(data.with_name("elsewhere")) as former, Api(former.address) as client:
        assert [each["data"] for each in client.read("a")] == [1]


def test_a_server_with_an_emptied_directory_stops_and_the_next_server_has_no_topics(
    server: Server, api: Api, data: Path
) -> None:
    _fill(api)
    _empty(data)
    server.stop()
    assert _image(data) == {}
    with server.again("kill") as again:
        assert ok(again.listing())["topics"] == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_backup_can_be_restored_at_the_path_of_a_running_servers_directory(
    server: Server, api: Api, data: Path, waits: bool
) -> None:
    _fill(api)
    address = f"http://{server.host}:{server.port}"
    archive, old = data.with_name("b.tar"), data.with_name("old")
    assert _topics("backup", "--url", address, archive).returncode == 0
    ok(api.append("a", "after the backup"))
    data.rename(old)
    assert _topics("restore", archive, data).returncode == 0
    restored = _image(data)
    assert "LOCK" in restored
    if waits:
        _wait_until(lambda: len(_loss_events(server)) == 2)
    server.stop()
    assert "process failed" not in server.logged
    assert _image(data) == restored
    with server.again("kill") as again:
        assert again.state("a")["head_seq"] == 60
    server.stop()
    with Server(old) as former, Api(former.address) as client:
        assert client.state("a")["head_seq"] == 61


def test_a_killed_shard_waits_for_its_own_directory_before_it_starts(
    server: Server, api: Api, data: Path
) -> None:
    _fill(api)
    elsewhere, shard = data.with_name("elsewhere"), server.roles()["shard 0"]
    os.kill(server.pid, 19)  # SIGSTOP: the shard is restarted only after the directory is replaced
    kill_one(shard)
    _replace(data)
    at_path = _image(data)
    os.kill(server.pid, 18)
    _wait_until(lambda: any(each["refused"] == "the start" for each in _loss_events(server)))
    _wait_until(
        lambda: "directory_lost" in str(refused(api.call("GET", "/v0/ready"), 503, "not_ready"))
    )
    assert _image(data) == at_path
    data.rename(data.with_name("other"))
    elsewhere.rename(data)
    server.wait_ready()
    assert _image(data.with_name("other")) == at_path
    assert sorted(map(len, (api.read(name) for name in "abcdef"))) == [60] * 6


def test_a_killed_front_serves_again_and_takes_backups_of_the_open_directory(
    server: Server, api: Api, data: Path
) -> None:
    _fill(api)
    server.replace("front 0")
    archive = data.with_name("b.tar")
    address = f"http://{server.host}:{server.port}"
    assert _topics("backup", "--url", address, archive).returncode == 0
    assert _topics("restore", archive, data.with_name("restored")).returncode == 0


def test_a_deleted_lock_file_admits_no_second_server_and_no_command(
    server: Server, api: Api, data: Path
) -> None:
    _fill(api, 3)
    (data / "LOCK").unlink()
    with pytest.raises(AssertionError, match="in use by process"):
        Server(data).start()
    for command in ("verify", "repair"):
        result = _topics(command, data)
        assert result.returncode == ExitCode.FAILED
        assert "in use" in result.stderr
    server.stop()
    assert _topics("verify", data).returncode == 0


def test_a_copy_without_a_lock_file_is_a_separate_directory_with_its_own_owner(
    server: Server, api: Api, data: Path
) -> None:
    _fill(api, 3)
    server.stop()
    copy = data.with_name("copy")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("LOCK"))
    server.start()
    with Server(copy) as other, Api(other.address) as client:
        assert client.state("a")["head_seq"] == 3
        assert "in use" in _topics("verify", copy).stderr
    assert _topics("verify", copy).returncode == 0
