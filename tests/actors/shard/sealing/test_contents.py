"""Contents of a segment: what is sealed of writes that are split, cut or kept in memory."""

from __future__ import annotations

import functools

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    delete,
    fill,
    seen,
)
from topics.actors.shard.sealing import building
from topics.engine.locators import is_extent, is_in_memory
from topics.formats.api.delete_body import TagMatch
from topics.formats.disk.segment_build import build


def test_records_in_memory_stay_between_sealed_ones(client: Sealer) -> None:
    for durability in ("disk", "ephemeral", "memory", "ephemeral", "fsync"):
        client.put("a", durability=durability)
        fill(client, "a", rounds=8)
    before = seen(client)
    client.seal()
    assert seen(client) == before
    locators = [*client.engine.topic("a").index.locators()]
    assert any(is_in_memory(locator) for locator in locators)
    assert any(is_extent(locator) for locator in locators)


def test_a_write_may_be_split_over_extents_and_keeps_its_key(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "build", functools.partial(build, extent_records=4))
    client.append("a", *range(11), key="eleven")
    fill(client, "a")
    client.append("a", *range(30), key="thirty")
    fill(client, "a")
    before = seen(client)
    client.seal()
    assert len(client.engine.topic("a").index) > 10
    assert seen(client) == before
    client.kill()
    again = client.again()
    assert seen(again) == before
    assert again.append("a", 1, key="eleven") == (1, True)
    again.kill()


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_delete_up_to_the_middle_of_a_write_between_two_steps_can_be_sealed(
    steps: int, client: Sealer
) -> None:
    """The topic begins now in the middle of a write that is in no extent: none of its flags may
    become an extent's.
    """
    for _ in range(4):
        client.append(
            "a", records=[{"data": 1, "tag": "last" if index == 7 else None} for index in range(8)]
        )
        client.append("a", "x" * 600)  # each write has its log file
    delete(client, "a", match=TagMatch("Eq", "last"))
    for _ in range(steps):
        client.step()
    delete(client, "a", before_seq=12)
    before = seen(client)
    client.seal()
    assert seen(client) == before
    client.kill()
    again = client.again()
    assert seen(again) == before
    again.kill()
