"""backup and restore: the result is a complete file or a valid directory, or nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Run, started
from tests.support.api import Api
from tests.support.server import Server
from topics.client import Topics
from topics.errors import ExitCode

pytestmark = pytest.mark.slow

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def filled(client: Topics, name: str) -> str:
    client.topic(name).put()
    client.topic(name).append(*range(100))
    return name


def test_a_backup_is_restored(
    topics: Run, server: Server, filled: str, client: Topics, tmp_path: Path
) -> None:
    file, folder = tmp_path / "all.tar", tmp_path / "data"
    done = topics("backup", str(file))
    assert (done.code, done.out) == (0, "")
    assert str(file) in done.err
    assert [path.name for path in tmp_path.glob("all*")] == ["all.tar"]
    assert file.stat().st_mode & 0o777 == 0o600
    again = topics("--json", "backup", str(file))
    assert (again.code, again.error["code"]) == (ExitCode.USAGE, "usage")
    done = topics("--json", "restore", str(file), str(folder))
    assert done.code == 0
    assert done.objects[0]["shards"] == 2
    assert topics("verify", str(folder)).code == 0
    again = topics("--json", "restore", str(file), str(folder))
    assert (again.code, again.error["code"]) == (ExitCode.USAGE, "usage")
    assert topics("restore", "--as-new", str(file), str(tmp_path / "new")).code == 0
    epoch = client.topic(filled).state().epoch
    for made, is_new in (("data", False), ("new", True)):
        with Server(tmp_path / made, shards=2) as other, Api(other.address) as api:
            assert len(api.read(filled)) == 100
            assert (api.state(filled)["epoch"] > epoch) == is_new


def test_a_backup_to_a_pipe_equals_one_to_a_file(topics: Run, filled: str, tmp_path: Path) -> None:
    with (tmp_path / "piped.tar").open("wb") as out:
        run = started("backup", "-", stdout=out)
        run.communicate(timeout=60)
    assert run.returncode == 0
    assert topics("restore", str(tmp_path / "piped.tar"), str(tmp_path / "data")).code == 0


def test_a_file_that_is_no_backup_is_refused_with_one_line(
    topics: Run, filled: str, tmp_path: Path
) -> None:
    file = tmp_path / "all.tar"
    topics("backup", str(file))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(file.read_bytes()[:-4096])
    done = topics("--json", "restore", str(cut), str(tmp_path / "data"))
    assert (done.code, done.error["code"]) == (ExitCode.DAMAGED, "bad_backup")
    assert "not a complete backup" in done.error["message"]
    assert not [*tmp_path.glob("*data*")]


def test_a_directory_that_is_no_standby_is_refused(topics: Run, tmp_path: Path) -> None:
    done = topics("restore", str(tmp_path), "new")
    assert (done.code, done.err) == (2, f"topics: {tmp_path} is a directory, but not a standby\n")
    done = topics("restore", f"{tmp_path}@x", "new")
    assert (done.code, "'x' is not the number of a generation" in done.err) == (2, True)


@pytest.mark.parametrize("number", ENDING)
def test_an_interrupted_backup_leaves_no_file(
    topics: Run, client: Topics, filled: str, tmp_path: Path, number: signal.Signals
) -> None:
    for _ in range(4):
        client.topic(filled).append(*("x" * 100_000 for _ in range(20)))
    file, partial = tmp_path / "all.tar", tmp_path / "all.tar.partial"
    run = started("backup", "--rate", "100k", str(file))
    deadline = time.monotonic() + 60
    while not (partial.exists() and partial.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert topics("backup", str(file)).code == ExitCode.USAGE  # and the first one continues
    assert partial.exists()
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode == 128 + number
    assert not [*tmp_path.glob("all*")]


@pytest.mark.parametrize("number", ENDING)
def test_an_interrupted_restore_leaves_no_directory(
    topics: Run, filled: str, tmp_path: Path, number: signal.Signals
) -> None:
    file, target = tmp_path / "all.tar", tmp_path / "target"
    topics("backup", str(file))
    target.mkdir()
    run = started("restore", "-", str(target / "data"), stdin=subprocess.PIPE, text=False)
    with run:  # leaving the block closes the pipes
        assert run.stdin is not None
        run.stdin.write(file.read_bytes()[:-8192])
        run.stdin.flush()
        deadline = time.monotonic() + 60
        while not [*target.rglob("meta")]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while run.poll() is None:  # a signal just before a read does not interrupt the read
            assert time.monotonic() < deadline
            run.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(5)
        assert run.returncode == 128 + number
    assert not [*target.iterdir()]
