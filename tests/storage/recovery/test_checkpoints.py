"""Which checkpoint a start uses, and how it replays the log onto it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.log import (
    Client,
)
from topics.errors import TopicNotFound
from topics.storage import checkpoints

# Checkpoints


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Path]:
    """Return a directory with two checkpoints, left by two orderly stops."""
    for number in range(2):
        client = Client(tmp_path / "data")
        client.put("e", durability="ephemeral")
        client.append("e", number, number)
        client.append("d", number)
        client.stop()
    return tmp_path / "data"  # type: ignore[return-value]


def checkpoint_files(path: Path) -> list[Path]:
    return sorted((path / "checkpoint" / "00").glob("*.ckpt"))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damaged_count", [0, 1, 2])
def test_no_seq_is_assigned_twice_with_damaged_checkpoints(
    damaged_count: int, stopped: Path
) -> None:
    files = checkpoint_files(stopped)
    assert len(files) == 2
    for path in files[len(files) - damaged_count :]:
        damage(path)
    client = Client(stopped)
    assert client.engine.topic("d").head_seq == 2
    assert client.append("e", "next")[0] > 4
    client.kill()


def test_changes_after_the_last_orderly_stop_are_replayed_onto_its_checkpoint(
    stopped: Path,
) -> None:
    client = Client(stopped)
    client.append("d", "later")
    client.delete("e")
    client.kill()
    client = Client(stopped)
    assert client.engine.topic("d").head_seq == 3
    with pytest.raises(TopicNotFound):
        client.engine.topic("e")
    client.kill()


def test_two_checkpoints_are_kept(stopped: Path) -> None:
    for _ in range(3):
        Client(stopped).stop()
    files = checkpoint_files(stopped)
    assert len(files) == checkpoints.CHECKPOINTS_KEPT
    newest, older = checkpoints.intact_checkpoints(stopped / "checkpoint" / "00")
    assert newest.lsn > older.lsn
    assert checkpoints.read(files[-1]) == newest
