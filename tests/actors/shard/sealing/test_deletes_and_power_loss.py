"""Tests of the order of writes: delete flags are written to segments after the log contains the
deletes, so that a power loss keeps both or neither.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.actors.shard.sealing.sealing_support import (
    FILE_BYTES,
    Sealer,
    by_hand,
    copy,
    damage_newest_checkpoint,
    ended,
    finished,
)
from tests.support.log import LossyDisk
from topics.engine.changes import delete_records
from topics.engine.changes.delete_records import RemainingDelete
from topics.formats.api.diff_body import TagMatch
from topics.storage.recovery import shard_recovery

pytestmark = pytest.mark.slow

ODD, EVEN = TagMatch("Eq", "odd"), TagMatch("Eq", "even")


Seen = dict[str, Any]


@pytest.fixture(autouse=True)
def stepping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    by_hand(monkeypatch)
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> LossyDisk:
    return LossyDisk(monkeypatch)


@pytest.fixture
def client(disk: LossyDisk, tmp_path: Path) -> Iterator[Sealer]:
    """Return a shard with a capped topic of class `disk` with sealed records. All its data is
    synced. Later data is synced only if a test requests it.
    """
    with ended(Sealer(tmp_path / "data")) as client:
        client.put("a", durability="disk", cap_records=12)
        append(client, 20)
        client.checkpoint()
        yield client


def append(client: Sealer, count: int) -> None:
    for _ in range(count):
        client.filled["a"] += 1
        number = client.filled["a"]
        client.append(
            "a",
            records=[
                {"data": number, "tag": "odd" if number % 2 else "even", "meta": {"m": "x" * 60}}
            ],
        )


def delete(
    client: Sealer, match: TagMatch = ODD, before_seq: int | None = None
) -> RemainingDelete | None:
    """Delete one slice of records. Return the rest for further slices."""
    return delete_more(
        client, delete_records.remaining_delete(client.engine.table, "a", before_seq, match)
    )


def delete_more(client: Sealer, rest: RemainingDelete) -> RemainingDelete | None:
    change = delete_records.decide(client.engine.table, rest, client.now)
    client.submit(change)
    client.wait()
    return change.rest


def sync(client: Sealer) -> None:
    client.wal.flush(sync=True)
    client.advance()


def flagged(client: Sealer) -> int:
    """Return the number of delete flags that are set in the files."""
    return sum(path.read_bytes()[at : at + count].count(1) for path, at, count in flags(client))


def flags(client: Sealer) -> list[tuple[Path, int, int]]:
    segments = client.shard.segments.segments.values()
    return [
        (segment.path, segment.trailer.flags_at, segment.trailer.record_count)
        for segment in segments
    ]


def seen(client: Sealer) -> Seen:
    topic = client.engine.topic("a")
    floors = topic.start_seq, topic.cap_floor
    return {
        "head": topic.head_seq,
        "count": topic.count,
        "bytes": topic.bytes,
        "floors": floors,
        "records": client.shown("a"),
    }


def lose_power(client: Sealer, disk: LossyDisk, target: Path) -> Path:
    """Copy the files after a power loss in which the disk kept only synced data of the log, but all
    written data of the segments.
    """
    if target.exists():
        shutil.rmtree(target)
    disk.power_loss(client.path, target)
    for path in (client.path / "segment" / "00").iterdir():
        shutil.copyfile(path, target / "segment" / "00" / path.name)
    return target


def seen_after_power_loss(client: Sealer, disk: LossyDisk, target: Path, head: int) -> Seen:
    return seen_after_start(lose_power(client, disk, target), head)


def seen_after_start(path: Path, head: int) -> Seen:
    """Return the topic after a start, with its previous head. The real head is after the reserved
    seqs, which are reported as lost.
    """
    again = Sealer(path, boot="second")
    found = seen(again)
    again.kill()
    assert found["head"] > head
    return found | {"head": head}


def test_a_delete_that_the_log_lost_deletes_nothing(
    client: Sealer, disk: LossyDisk, tmp_path: Path
) -> None:
    before = seen(client)
    delete(client)
    assert seen(client) != before
    assert seen_after_power_loss(client, disk, tmp_path / "after", before["head"]) == before


def test_evictions_before_a_lost_delete_remain(
    client: Sealer, disk: LossyDisk, tmp_path: Path
) -> None:
    delete(client, ODD, before_seq=16)
    append(client, 5)
    # A full log file would be synced.
    while client.wal.next_lsn - client.wal._bases[-1] > FILE_BYTES // 16:
        append(client, 1)
    sync(client)
    before, synced = seen(client), client.wal.synced_lsn
    delete(client, EVEN)
    append(client, 1)
    assert client.wal.synced_lsn == synced
    assert seen_after_power_loss(client, disk, tmp_path / "after", before["head"]) == before


def test_a_delete_takes_effect_immediately_and_its_flags_are_written_after_the_log_is_synced(
    client: Sealer, disk: LossyDisk, tmp_path: Path
) -> None:
    delete(client)
    after, synced = seen(client), flagged(client)
    client.seal()
    assert flagged(client) == synced  # the log is not synced yet
    again = Sealer(copy(client.path, tmp_path / "killed"), boot="first")
    assert seen(again) == after
    again.kill()
    sync(client)
    assert seen(client) == after
    client.seal()
    assert flagged(client) > synced
    assert seen(client) == after
    assert not client.shard.segments.flags._queue
    assert seen_after_power_loss(client, disk, tmp_path / "after", after["head"]) == after


@pytest.mark.parametrize("slice_records", [1000, 2])
@pytest.mark.parametrize("kept", ["newest", "older"])
def test_at_any_step_of_a_checkpoint_a_slice_of_a_delete_is_lost_completely_or_not_at_all(
    kept: str,
    slice_records: int,
    client: Sealer,
    disk: LossyDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint syncs first the log and then the delete flags. A delete between the two syncs is
    not durable.
    """
    monkeypatch.setattr(delete_records, "SLICE_RECORDS", slice_records)
    continues, steps, slices = True, 0, 0
    while continues:
        append(client, 3)
        sync(client)
        client.in_flight = client.sealing.checkpoint()
        continues = all(client.step() for _ in range(steps))
        moments = [seen(client)]
        before_seq = client.engine.topic("a").head_seq - 2
        rest = delete(client, ODD if steps % 2 else EVEN, before_seq)
        moments.append(seen(client))
        while True:
            left = lose_power(client, disk, tmp_path / "after")
            if kept == "older" and len(finished(left)) > 1:
                damage_newest_checkpoint(left)
            assert seen_after_start(left, moments[0]["head"]) in moments, steps
            if rest is not None:
                rest, slices = delete_more(client, rest), slices + 1
                moments.append(seen(client))
            elif client.in_flight is None:
                break
            if client.in_flight is not None:
                client.step()
        client.checkpoint()
        steps += 1
    assert steps > 4
    assert slices > 4 or slice_records > 2


def test_a_start_writes_no_flags_before_it_has_synced_the_log(
    client: Sealer, disk: LossyDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, the replayed log may exist only in the page cache, which a power loss
    discards.
    """
    before = seen(client)
    delete(client)

    def loses_power(*_: object, **__: object) -> None:
        raise OSError("power is lost")

    with monkeypatch.context() as patch:
        patch.setattr(shard_recovery, "end_log", loses_power)
        with pytest.raises(OSError, match="power is lost"):
            client.again()
    assert seen_after_power_loss(client, disk, tmp_path / "after", before["head"]) == before
