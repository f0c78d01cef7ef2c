"""Log replay: log files must be consecutive, and the log must reach its checkpoint."""

from __future__ import annotations

import errno
import gc
from pathlib import Path

import pytest

from tests.support.log import (
    FILE_BYTES,
    START,
    Client,
    log_files,
)
from tests.support.recovery import frames_of, recovered_state
from topics.storage.disk import Damaged
from topics.storage.recovery import log_replay
from topics.storage.recovery.shard_recovery import recover


def test_a_log_that_ends_before_its_checkpoint_is_damage(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("a", "one")
    client.append("a", "two")
    client.stop()
    path = log_files(tmp_path / "data")[0]
    offset, _ = frames_of(path)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:offset].ljust(len(content), b"\0"))
    with pytest.raises(Damaged, match="before the checkpoint"):
        Client(tmp_path / "data")
    path.unlink()
    with pytest.raises(Damaged, match="before the checkpoint"):
        Client(tmp_path / "data")


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_missing_file_is_damage(number: int, many: Path) -> None:
    files = log_files(many)
    files[number].unlink()
    with pytest.raises(Damaged, match="missing or truncated") as raised:
        Client(many)
    assert raised.value.path == files[number + 1]


@pytest.mark.slow
@pytest.mark.parametrize("is_opened", [False, True])
def test_a_refused_start_closes_all_files(many: Path, is_opened: bool) -> None:
    files = log_files(many)
    if is_opened:
        files[1].unlink()
    else:
        files[-1].write_bytes(b"")
    with pytest.raises(Damaged):
        Client(many)
    gc.collect()  # Release the maps that the traceback references
    descriptors = [*Path("/proc/self/fd").iterdir()]
    names = {str(path.readlink()) for path in descriptors if path.is_symlink()}
    assert not names & {str(path) for path in files}


def test_a_log_file_of_another_shard_is_damage(many: Path) -> None:
    (many / "wal" / "00").rename(many / "wal" / "01")
    with pytest.raises(Damaged, match="belongs to shard 0"):
        recover(many, 1, 2, START, wal_file_bytes=FILE_BYTES, wal_sync_ms=200)


def test_the_log_is_read_even_if_the_file_system_supports_no_read_ahead_advice(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = recovered_state(many)

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "no advice")

    monkeypatch.setattr(log_replay, "will_need", refuse)
    assert recovered_state(many) == before
