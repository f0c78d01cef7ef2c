"""Which checkpoint a start believes, and what it lays over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import make_whole
from tests.support.log import (
    START,
    Client,
)
from tests.support.recovery import busy_client, recovered_state
from topics.engine.changes import append
from topics.engine.moved_keys import earlier_copy_key
from topics.engine.now import Now
from topics.errors import TopicNotFound
from topics.formats.disk import checkpoint
from topics.storage import checkpoints
from topics.storage.disk import Damaged

# Checkpoints


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Path]:
    """A shard that was stopped in order twice, so that two checkpoints stand."""
    for number in range(2):
        client = Client(tmp_path / "data")
        client.put("e", durability="ephemeral")
        client.append("e", number, number)
        client.append("d", number)
        client.stop()
    return tmp_path / "data"  # type: ignore[return-value]


def checkpoint_files(path: Path) -> list[Path]:
    return sorted((path / "checkpoint" / "00").glob("*.ckpt"))


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_with_damaged_checkpoints_no_seq_is_given_twice(spoiled: int, stopped: Path) -> None:
    files = checkpoint_files(stopped)
    assert len(files) == 2
    for path in files[len(files) - spoiled :]:
        spoil(path)
    client = Client(stopped)
    assert client.engine.topic("d").head_seq == 2
    assert client.append("e", "next")[0] > 4
    client.kill()


def test_a_checkpoint_of_an_unknown_version_is_refused_by_name(stopped: Path) -> None:
    path = checkpoint_files(stopped)[-1]
    content = bytearray(path.read_bytes())
    content[8] = 9
    path.write_bytes(content)
    with pytest.raises(
        Damaged,
        match=f"{path.name}, offset 8: has format version 9; this program reads versions up to 4",
    ):
        Client(stopped)


def test_what_came_after_the_last_stop_is_laid_over_its_checkpoint(stopped: Path) -> None:
    client = Client(stopped)
    client.append("d", "later")
    client.delete("e")
    client.kill()
    client = Client(stopped)
    assert client.engine.topic("d").head_seq == 3
    with pytest.raises(TopicNotFound):
        client.engine.topic("e")
    client.kill()


def test_checkpoints_from_before_they_had_pieces_are_read(tmp_path: Path) -> None:
    busy_client(tmp_path / "data").stop()
    shutil.copytree(tmp_path / "data", tmp_path / "older")
    (path,) = checkpoint_files(tmp_path / "older")
    make_whole(path)
    assert recovered_state(tmp_path / "older") == recovered_state(tmp_path / "data")
    Client(tmp_path / "older").stop()
    assert [path.read_bytes()[8] for path in checkpoint_files(tmp_path / "older")] == [2, 4]


def test_a_checkpoint_of_the_version_before_gives_its_keys(tmp_path: Path) -> None:
    """As texts, those of copies among them."""
    data, copy = tmp_path / "data", earlier_copy_key("dead_letter", 7, 3)
    client = Client(data)
    client.append("a", 1, 2)
    client.append("a", 3, key="k")
    client.stop()
    (path,) = checkpoint_files(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint, "VERSION", 3)
        found = checkpoints.read(path)
        assert found is not None
        keys = [["gone", 1, 1, START.ts], [copy, 2, 1, START.ts]]
        items = [found.shard, *found.items(), {"id": client.engine.topic("a").id, "keys": keys}]
        checkpoints.write(path.parent, found.lsn, found.replay_from, items, clean=True)
    assert [path.read_bytes()[8] for path in checkpoint_files(data)] == [4, 3]
    client = Client(data, now=Now(START.ts + 60_000, 17))
    assert [client.append("a", 2, key=key) for key in ("k", "gone")] == [(3, True), (1, True)]
    client.later(1 << 40)
    assert append.find_duplicate(client.engine.topic("a"), copy, client.now) == (2, 1)
    client.kill()


def test_two_checkpoints_are_kept(stopped: Path) -> None:
    for _ in range(3):
        Client(stopped).stop()
    files = checkpoint_files(stopped)
    assert len(files) == checkpoints.KEEP
    newest, older = checkpoints.whole(stopped / "checkpoint" / "00")
    assert newest.lsn > older.lsn
    assert checkpoints.read(files[-1]) == newest
