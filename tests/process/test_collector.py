"""Cyclic collector: looks stay short, and a shard leaves nothing for them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    by_hand,
    delete,
    eager_merges,
    fill,
    no_syncs,
)
from topics.formats.api.diff_body import TagMatch
from topics.process import shard_writer
from topics.process.shard_writer import FREEZE_OBJECTS, freeze_survivors


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    callbacks, enabled, thresholds = [*gc.callbacks], gc.isenabled(), gc.get_threshold()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


def test_each_object_that_stays_is_looked_at_until_it_is_frozen_and_no_more() -> None:
    gc.collect()
    freeze_survivors()
    assert not gc.get_objects(2)
    kept: list[list[int]] = []
    for _ in range(20):
        kept += ([] for _ in range(FREEZE_OBJECTS // 2))
        gc.collect()
        assert len(gc.get_objects(2)) < FREEZE_OBJECTS
    assert len(gc.get_objects()) < FREEZE_OBJECTS < gc.get_freeze_count()


def test_what_does_not_survive_is_found_and_not_frozen() -> None:
    gc.collect()
    freeze_survivors()
    before = gc.get_freeze_count()
    for _ in range(FREEZE_OBJECTS):
        circle: list[Any] = []
        circle.append(circle)
    del circle
    gc.collect()
    # Objects of the test's other threads come and go meanwhile.
    assert gc.get_freeze_count() - before < FREEZE_OBJECTS // 2


def test_only_the_oldest_look_freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writer, "FREEZE_OBJECTS", 0)
    gc.collect()
    freeze_survivors()
    kept: list[list[int]] = [[] for _ in range(1000)]
    gc.collect(1)
    assert _looked_at(kept) == len(kept)
    gc.collect()
    assert not _looked_at(kept)


def _looked_at(objects: list[list[int]]) -> int:
    """How many of them are not frozen. Counts alone would tell of other threads' objects, too."""
    wanted = {id(each) for each in objects}
    return sum(id(each) in wanted for each in gc.get_objects())


def test_a_shard_leaves_no_circle_of_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics, keys, tags, deletes, segments, merges and checkpoints come and go."""
    by_hand(monkeypatch)
    no_syncs(monkeypatch)
    eager_merges(monkeypatch)
    client = Sealer(tmp_path / "data")
    turn(client)
    left = circles(lambda: turn(client))
    client.kill()
    assert not left


def turn(client: Sealer) -> None:
    for number in range(6):
        fill(client, f"t{number}", "kept", rounds=6)
        delete(client, f"t{number}", match=TagMatch("Eq", "even"))
        client.put(f"t{number}", cap_records=3)
        client.seal()
    client.checkpoint()
    for number in range(6):
        client.delete(f"t{number}")
    client.checkpoint()
    client.later(200_000)


def circles(act: Callable[[], None]) -> list[str]:
    """Kinds of the objects of ours that are found by a look alone."""
    gc.collect()
    gc.disable()
    act()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = sorted({type(each).__qualname__ for each in gc.garbage if _is_ours(each)})
    gc.garbage.clear()
    return found


def _is_ours(found: object) -> bool:
    return type(found).__module__.startswith("topics.")
