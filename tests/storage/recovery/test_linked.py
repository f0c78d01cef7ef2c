"""Payloads at a start: every one that the log names is there, and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forwarding import RECORDS, forward, write_payload
from tests.support.linked import ShardLog
from tests.support.log import Client, ForgetfulDisk
from topics.storage.disk import Damaged
from topics.storage.recovery.linked import verify_linked
from topics.storage.start_progress import StartProgress


def linked_pair(path: Path) -> tuple[ShardLog, ShardLog]:
    """The log of shard 2, and that of shard 1, which names its first frame."""
    source, dest = ShardLog(path, 2), ShardLog(path, 1)
    dest.name((2, source.write(100)))
    source.give_up(source.next_file())
    return source, dest


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_payloads_that_are_there_are_taken(tmp_path: Path, is_clean: bool) -> None:
    source, dest = linked_pair(tmp_path)
    own, blob = dest.write(), source.write_blob(9, 1)
    dest.name((2, blob), (1, own))
    payloads = {(2, 0), (2, blob), (1, own)}
    for each in (source, dest):
        each.stop()
    again = ShardLog(tmp_path, 1)
    verify_linked(again.linked, payloads, StartProgress(lambda _: None), is_clean=is_clean)
    again.stop()


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_missing_payload_is_damage(tmp_path: Path, is_clean: bool) -> None:
    source, dest = linked_pair(tmp_path)
    with pytest.raises(Damaged) as damage:
        verify_linked(dest.linked, {(3, 0)}, StartProgress(lambda _: None), is_clean=is_clean)
    assert damage.value.path == dest.linked.folder / f"03-{0:016x}.wal"
    for each in (source, dest):
        each.stop()


def test_hurt_records_are_damage_unless_the_stop_was_orderly(tmp_path: Path) -> None:
    source, dest = linked_pair(tmp_path)
    path = dest.linked.folder / f"02-{0:016x}.wal"
    with path.open("r+b") as file:
        file.seek(4096 + 100)
        file.write(b"\x7f")
    progress = StartProgress(lambda _: None)
    verify_linked(dest.linked, {(2, 0)}, progress, is_clean=True)
    with pytest.raises(Damaged) as damage:
        verify_linked(dest.linked, {(2, 0)}, progress, is_clean=False)
    assert (damage.value.path, damage.value.offset) == (path, 4096)
    for each in (source, dest):
        each.stop()


def test_after_a_power_loss_every_payload_that_the_log_names_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = ForgetfulDisk(monkeypatch), tmp_path / "data"
    client, source = Client(path), ShardLog(path, 2)
    client.put("dest", durability="fsync")
    for _ in range(3):
        forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
        source.next_file()
    before = client.records("dest")
    disk.power_loss(path, tmp_path / "left")
    for each in (source.stop, client.kill):
        each()
    again = Client(tmp_path / "left", boot="second")
    assert again.records("dest") == before
    again.kill()
