"""Restored keys, and deletes that follow the checkpoint. `tests/engine/test_topic_machine.py`
restarts topics between caps, age and deletes.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.log import Client
from topics.formats.ranges import SeqRun
from topics.storage.recovery.restore import DeletesAhead


def test_a_key_outlives_its_records_also_when_its_window_has_grown(tmp_path: Path) -> None:
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


def test_an_extent_finds_the_deletes_that_reach_into_it_and_not_those_far_away() -> None:
    ahead, far = DeletesAhead(), SeqRun(1 << 40, 1)
    near = [SeqRun(65_530, 100), SeqRun(65_536, 1), SeqRun(131_071, 1), SeqRun(1, 1 << 20)]
    ahead.add(1, [*near, far])
    ahead.add(2, [SeqRun(70_000, 5)])
    found = [*ahead.of(1, 65_500, 65_536)]
    assert {*near} == {*found}
    assert [*ahead.of(1, far.first, 1)] == [far]
    assert [*ahead.of(1, 1 << 50, 1)] == []
    assert [*ahead.of(3, 65_500, 65_536)] == []
