"""No seq is assigned twice after a kill, a power failure or a change of the durability class."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.log import (
    Client,
    LossyDisk,
)
from tests.support.recovery import CLASSES
from topics.engine.topic import RESERVE_MIN

# Seqs after a power failure


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("losses", [1, 2])
def test_no_seq_is_assigned_twice_after_power_failures(
    durability: str, losses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    client = Client(tmp_path / "0", sync_ms=60_000)
    client.put("a", durability=durability)
    client.append("a", "first")
    assigned_seq = 1
    for loss in range(losses):
        for number in range(10):
            assigned_seq = client.append("a", number, "and one more")[0] + 1
        disk.power_loss(tmp_path / f"{loss}", tmp_path / f"{loss + 1}")
        client.kill()
        client = Client(tmp_path / f"{loss + 1}", boot=f"boot {loss}", sync_ms=60_000)
        if durability == "fsync":
            assert client.engine.topic("a").head_seq == assigned_seq
        assert client.append("a", "next")[0] > assigned_seq
    client.kill()


@pytest.mark.parametrize("before", ["memory", "disk"])
def test_a_topic_that_was_changed_to_fsync_loses_no_record_and_reports_no_loss(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.put("a", durability=before)
    client.append("a", "old class")
    client.put("a", durability="fsync")
    client.append("a", "new class")
    disk.power_loss(tmp_path / "data", tmp_path / "left")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.engine.topic("a").head_seq == 2
    assert client.engine.topic("a").losses == ()
    assert client.append("a", "next") == (3, False)
    client.kill()


def test_an_orderly_stop_keeps_the_head_of_a_topic_in_memory(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.put("a", durability="ephemeral")
    client.append("a", 1, 2, 3)
    client.stop()
    client = Client(tmp_path / "data")
    assert client.append("a", 4) == (4, False)
    client.kill()


def test_no_seq_is_assigned_twice_after_a_kill_soon_after_an_orderly_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    client = Client(tmp_path / "data")
    client.put("a", durability="ephemeral")
    client.append("a", 1, 2, 3)
    client.stop()
    client = Client(tmp_path / "data", sync_ms=60_000)
    assert client.append("a", 4) == (4, False)
    disk.power_loss(tmp_path / "data", tmp_path / "left")
    client.kill()
    client = Client(tmp_path / "left", boot="second")
    assert client.append("a", "next")[0] > 4
    client.kill()


def test_records_in_memory_never_exceed_their_seq_reservation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    client = Client(tmp_path / "data", sync_ms=60_000)
    client.put("a", durability="ephemeral")
    last = 0
    for number in range(8):
        last = client.append("a", *range(1500))[0] + 1499
        disk.power_loss(tmp_path / "data", tmp_path / f"left {number}")
        other = Client(tmp_path / f"left {number}", boot="second")
        assert other.append("a", "next")[0] > last
        other.kill()
    client.kill()


@pytest.mark.parametrize("before", CLASSES)
@pytest.mark.parametrize("after", CLASSES)
@pytest.mark.parametrize("loses_power", [False, True])
def test_no_seq_is_assigned_twice_after_a_change_of_the_durability_class(
    before: str, after: str, loses_power: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LossyDisk(monkeypatch)
    client = Client(tmp_path / "0", sync_ms=60_000)
    client.put("a", durability=before)
    client.append("a", *range(5000))
    client.append("a", "old class")
    client.put("a", durability=after)
    last = client.append("a", "new class")[0]
    for start in (1, 2):
        if loses_power:
            disk.power_loss(tmp_path / f"{start - 1}", tmp_path / f"{start}")
        else:
            shutil.copytree(tmp_path / f"{start - 1}", tmp_path / f"{start}")
        client.kill()
        client = Client(
            tmp_path / f"{start}", boot=f"boot {start}" if loses_power else "first", sync_ms=60_000
        )
        assert client.engine.topic("a").config.durability == after
        first = client.append("a", "next")[0]
        assert first > last
        last = first
    client.kill()


def test_without_a_boot_id_every_start_is_treated_as_a_power_failure(tmp_path: Path) -> None:
    first_seqs = []
    for _ in range(3):
        client = Client(tmp_path / "data", boot="")
        first_seqs.append(client.append("a", 1)[0])
        client.kill()
    assert first_seqs[0] == 1
    assert all(later >= earlier + RESERVE_MIN for earlier, later in pairwise(first_seqs))
