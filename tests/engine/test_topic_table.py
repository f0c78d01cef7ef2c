"""Topic table: ids, epochs and names."""

from __future__ import annotations

from tests.engine.shard_support import Desk
from topics.engine.now import Now


def test_ids_of_shards_never_meet() -> None:
    desks = [Desk(shard, 3) for shard in range(3)]
    for desk in desks:
        for number in range(5):
            desk.put(f"t{number}")
    ids = [{topic.id for topic in desk.engine.topics.values()} for desk in desks]
    assert [{number % 3 for number in each} for each in ids] == [{0}, {1}, {2}]
    assert 0 not in ids[0]


def test_epochs_rise_though_the_clock_goes_back(desk: Desk) -> None:
    epochs = []
    for ts in (100, 50, 50, 7):
        desk.now = Now(ts, desk.now.ms + 1)
        desk.put("a")
        epochs.append(desk.engine.topic("a").epoch)
        desk.delete("a")
    assert epochs == sorted(set(epochs))
    assert epochs[0] == 100


def test_names_are_sorted_and_stay_inside_prefix_cursor_and_allowlist(desk: Desk) -> None:
    for name in ("b", "a", "a.2", "a.1", "c"):
        desk.put(name)
    names = desk.engine.names
    assert list(names("", None, None)) == ["a", "a.1", "a.2", "b", "c"]
    assert list(names("a", None, None)) == ["a", "a.1", "a.2"]
    assert list(names("a", "a.1", None)) == ["a.2"]
    assert list(names("", None, ["b", "a."])) == ["a.1", "a.2", "b"]
    assert list(names("", None, [])) == []
