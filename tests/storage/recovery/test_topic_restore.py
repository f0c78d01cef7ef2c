"""Records that cap, age or delete removed before a restart stay removed after it, in every
durability class that keeps records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.log import Client, state
from topics.engine.now import Now
from topics.formats.ranges import SeqRun
from topics.storage.recovery.topic_restore import LaterDeletes


def seqs(client: Client, name: str = "a") -> list[int]:
    return [record["$seq"] for record in msgspec.json.decode(b"[%b]" % client.records(name))]


def tagged(client: Client, *tags: str | None) -> None:
    records: list[dict[str, Any]] = [
        {"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags
    ]
    client.append("a", records=records)


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_deleted_records_stay_deleted(tmp_path: Path, durability: str) -> None:
    client = Client(tmp_path)
    client.put("a", durability=durability)
    tagged(client, "x", None, "xy", "z", "x")
    tagged(client, "x")
    assert client.delete_records("a", match="x", before_seq=6) == 2
    assert client.delete_records("a", match=["tag", "Glob", "x*"], before_seq=4) == 1
    assert client.delete_records("a", before_seq=2) == 0
    tagged(client, "x")
    before = state(client)
    assert seqs(client) == [2, 4, 6, 7]
    for _ in range(2):
        client.kill()
        client = Client(tmp_path)
        assert state(client) == before
    assert client.delete_records("a", match="x") == 2  # Tags of unsealed records are indexed again
    assert seqs(client) == [2, 4]
    client.kill()


def test_a_capped_topic_is_restored_with_the_same_floor(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", cap_records=5)
    for count in (3, 4, 1, 2, 7, 1):
        client.append("a", *range(count))
    client.put("a", cap_records=3)
    client.put("a", cap_records=0)
    client.append("a", 1)
    before, floor = state(client), client.engine.topic("a").cap_floor
    client.kill()
    client = Client(tmp_path)
    assert (state(client), client.engine.topic("a").cap_floor) == (before, floor)
    assert seqs(client) == [16, 17, 18, 19]
    client.kill()


def test_a_key_outlives_its_records_even_if_its_window_was_lengthened(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", cap_records=1, idempotency_window_ms=100)
    client.append("a", 1, key="k")
    client.append("a", 2)
    client.put("a", idempotency_window_ms=100_000)
    client.later(1000)
    assert client.append("a", 3, key="k") == (1, True)
    client.kill()
    client = Client(tmp_path, now=client.now)
    assert client.append("a", 3, key="k") == (1, True)
    client.kill()


def test_expired_records_stay_removed_after_the_clock_was_set_back(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", ttl_ms=50)
    client.append("a", 1, 2)
    client.later(51)
    client.append("a", 3)
    client.expire("a")
    client.kill()
    client = Client(tmp_path, now=Now(client.now.ts - 1000, client.now.ms))
    client.expire("a")
    page = client.read("a")
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 2, "ttl")
    assert seqs(client) == [3]
    client.kill()


def test_records_in_memory_are_reported_as_lost_after_the_records_below_them_are_read(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.append("a", 1, 2)
    client.put("a", durability="ephemeral")
    client.append("a", 3, 4)
    client.put("a", durability="disk")
    client.append("a", 5)
    assert seqs(client) == [1, 2, 3, 4, 5]
    client.kill()
    client = Client(tmp_path)
    assert seqs(client) == [1, 2]
    assert client.read("a", 0).next_from_seq == 2
    page = client.read("a", 2)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (
        3,
        4,
        "mixed",
    )
    assert (page.count, page.next_from_seq) == (1, 5)
    client.kill()


def test_a_topic_in_memory_reports_its_loss_from_the_first_seq(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", durability="ephemeral")
    client.append("a", 1, 2)
    client.stop()
    client = Client(tmp_path)
    page = client.read("a", 0)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (
        1,
        2,
        "mixed",
    )
    assert (page.next_from_seq, page.earliest_seq) == (2, 3)
    client.kill()


def test_an_eviction_caused_by_records_in_memory_is_kept(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a", cap_records=3)
    client.append("a", 1, 2, 3)
    client.put("a", durability="ephemeral")
    client.append("a", 4, 5)
    client.expire("a")
    assert seqs(client) == [3, 4, 5]
    client.kill()
    client = Client(tmp_path)
    assert seqs(client) == [3]
    client.kill()


def test_an_extent_finds_only_the_later_deletes_that_overlap_it() -> None:
    later_deletes, far = LaterDeletes(), SeqRun(1 << 40, 1)
    near = [SeqRun(65_530, 100), SeqRun(65_536, 1), SeqRun(131_071, 1), SeqRun(1, 1 << 20)]
    later_deletes.add(1, [*near, far])
    later_deletes.add(2, [SeqRun(70_000, 5)])
    found = [*later_deletes.of(1, 65_500, 65_536)]
    assert {*near} == {*found}
    assert [*later_deletes.of(1, far.first, 1)] == [far]
    assert [*later_deletes.of(1, 1 << 50, 1)] == []
    assert [*later_deletes.of(3, 65_500, 65_536)] == []
