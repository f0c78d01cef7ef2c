"""What the front tells of shards that do not serve."""

from __future__ import annotations

import pytest

from topics.actors.shard_client.readiness import Readiness
from topics.front.backend import listed, unready

REPLAYING = (0, "recovering")


@pytest.mark.parametrize(
    ("unwell", "message", "reason"),
    [
        ((REPLAYING,), "the log is being replayed", None),
        ((REPLAYING, (1, "stalled")), "shard 1 does not answer", "stalled"),
        ((REPLAYING, (2, "damaged"), (3, "stalled")), "shard 2 has damaged data", "damaged"),
        (((4, "disk_stalled"),), "shard 4 waits for its disk", "disk_stalled"),
    ],
)
def test_a_trouble_is_the_reason_before_a_replay(
    unwell: tuple[tuple[int, str], ...], message: str, reason: str | None
) -> None:
    failure = unready(Readiness(False, 0.5, 0, False, unwell))
    assert (failure.message, failure.detail.get("reason")) == (message, reason)
    assert failure.detail["replay_progress"] == 0.5
    assert failure.detail["shards"] == [
        {"shard": shard, "state": state} for shard, state in unwell
    ], "all of them are named"


def test_no_prefixes_are_another_thing_than_an_empty_list_of_them() -> None:
    assert (listed(None), listed(()), listed(("a", "b"))) == (None, [], ["a", "b"])
