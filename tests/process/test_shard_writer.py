"""A shard writer without clients: its state on the board, its start and its end."""

from __future__ import annotations

import errno
import gc
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from topics.actors.link.board import Board, ShardState, StartFailure
from topics.actors.shard.loop import ShardLoop
from topics.config import Settings
from topics.errors import ExitCode
from topics.process import shard_writer
from topics.storage import checkpoints
from topics.storage.disk import Damaged
from topics.storage.folders import Folders
from topics.storage.recovery.shard_recovery import open_folders
from topics.storage.start_progress import StartProgress


@pytest.fixture(autouse=True)
def restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handler, interval = signal.getsignal(signal.SIGTERM), sys.getswitchinterval()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("error", "code", "event", "failure"),
    [
        (
            Damaged(Path("/d/1.wal"), 28, "torn"),
            ExitCode.DAMAGED,
            "data damaged",
            StartFailure.NONE,
        ),
        *(
            (OSError(number, "no", "/d"), ExitCode.FAILED, "start failed", failure)
            for number, failure in (
                (errno.EACCES, StartFailure.PERMISSION_DENIED),
                (errno.EPERM, StartFailure.PERMISSION_DENIED),
                (errno.ENOSPC, StartFailure.DISK_FULL),
                (errno.EIO, StartFailure.DISK_FAILED),
                (errno.EROFS, StartFailure.DISK_FAILED),
                (errno.EISDIR, StartFailure.START_FAILED),
            )
        ),
    ],
)
def test_a_start_with_unreadable_or_damaged_data_exits_with_its_code(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: ExitCode,
    event: str,
    failure: StartFailure,
) -> None:
    def recover(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(shard_writer, "recover", recover)
    board = Board(1)
    with capture_logs() as logged, pytest.raises(SystemExit) as ended:
        shard_writer.main(Settings(shards=1), Folders.under(Path("data"), 0), board, [], 0)
    assert ended.value.code == code
    assert [(line["event"], line["log_level"]) for line in logged] == [(event, "critical")]
    assert ("topics repair --dry-run" in logged[0].get("repair", "")) == (code == ExitCode.DAMAGED)
    assert board.shard(0).state is ShardState.RECOVERING
    board.shard(0).clear()  # As the supervisor does before it restarts the shard
    assert board.shard(0).start_failure == failure


def test_an_unexpected_error_of_a_start_remains_on_the_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def recover(*_: object, **__: object) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(shard_writer, "recover", recover)
    board = Board(1)
    with pytest.raises(AssertionError, match="a defect"):
        shard_writer.main(Settings(shards=1), Folders.under(Path("data"), 0), board, [], 0)
    assert board.shard(0).start_failure == StartFailure.START_FAILED


def test_recovery_updates_its_progress_and_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(1)
    seen: list[tuple[ShardState, int, bool]] = []

    def recover(*_: object, report: Any, **__: object) -> None:
        cells = board.shard(0)
        for share in (0.25, 1.0):
            report(share)
            seen.append((cells.state, cells.progress_ppm, cells.heartbeat_ms > 0))
        raise OSError("enough")

    monkeypatch.setattr(shard_writer, "recover", recover)
    with capture_logs(), pytest.raises(SystemExit):
        shard_writer.main(Settings(shards=1), Folders.under(Path("data"), 0), board, [], 0)
    assert seen == [
        (ShardState.RECOVERING, 250_000, True),
        (ShardState.RECOVERING, 1_000_000, True),
    ]


def test_a_sigterm_stops_a_shard_in_order_with_a_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_loop: ShardLoop, _links: object, stop: trio.Event) -> None:
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()

    monkeypatch.setattr(ShardLoop, "run", run)
    board = Board(1)
    with capture_logs() as logged:
        shard_writer.main(Settings(shards=1), Folders.under(tmp_path, 0), board, [], 0)
    assert [line["event"] for line in logged] == ["shard recovered"]
    assert board.shard(0).state is ShardState.STOPPED
    progress = StartProgress(lambda _share: None)
    newest, *_ = checkpoints.intact_checkpoints(open_folders(tmp_path, 0, progress).checkpoint)
    assert newest.clean


def test_a_start_without_a_damaged_checkpoint_logs_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_loop: ShardLoop, _links: object, _stop: trio.Event) -> None: ...

    monkeypatch.setattr(ShardLoop, "run", run)
    folders = Folders.under(tmp_path, 0)
    shard_writer.main(Settings(shards=1), folders, Board(1), [], 0)
    # An unfinished checkpoint is not damage.
    (folders.checkpoint / f"{2:016x}.ckpt.tmp").write_bytes(b"unfinished")
    with capture_logs() as logged:
        shard_writer.main(Settings(shards=1), folders, Board(1), [], 0)
    assert [line["event"] for line in logged] == ["shard recovered"]
    (damaged := folders.checkpoint / f"{2:016x}.ckpt").write_bytes(b"hello")
    with capture_logs() as logged:
        shard_writer.main(Settings(shards=1), folders, Board(1), [], 0)
    (line,) = [line for line in logged if line["event"] == "data damaged"]
    assert (line["log_level"], line["path"]) == ("error", str(damaged))
