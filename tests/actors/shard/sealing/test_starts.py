"""Tests of starts from the files that sealing and checkpointing leave on the disk."""

from __future__ import annotations

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    copy,
    damage_newest_checkpoint,
    delete,
    fill,
    findings,
    free_all,
    sealed,
    seen,
)
from tests.support.log import append_streamed
from topics.formats.api.diff_body import TagMatch
from topics.storage import checkpoints


@pytest.mark.slow
def test_a_start_succeeds_from_the_older_checkpoint_if_the_newest_is_damaged(
    client: Sealer,
) -> None:
    for _ in range(6):
        fill(client, "a", "b", rounds=4)
        append_streamed(client, "a", *["y" * 500])
        delete(client, "b", match=TagMatch("Eq", "odd"))
        client.seal()
        before = seen(client)
        target = copy(client.path, client.path.with_name("copy"))
        damage_newest_checkpoint(target)
        for _ in range(2):
            other = Sealer(target)
            assert seen(other) == before
            other.kill()
        other = Sealer(target)
        other.checkpoint()  # removes the damaged checkpoint, not the intact one
        other.kill()
        assert len(checkpoints.intact_checkpoints(target / "checkpoint" / "00")) == 2
        assert findings(target) == []


def test_a_kill_without_a_reboot_skips_no_seq_when_the_start_frame_is_sealed(
    client: Sealer,
) -> None:
    for _ in range(4):
        fill(client, "a", rounds=8)
        client.seal()
    head = client.engine.topic("a").head_seq
    assert client.wal.oldest_lsn > 0
    client.kill()
    again = client.again()
    assert again.append("a", "next") == (head + 1, False)
    again.kill()
    again = again.again(boot="second")
    assert again.append("a", "after a power loss")[0] > head + 2
    again.kill()


def test_keys_survive_the_removal_of_their_records_extents_and_segments(client: Sealer) -> None:
    fill(client, "a", "b", "c", rounds=12)
    delete(client, "a", before_seq=9)
    client.seal()
    delete(client, "b", match=TagMatch("Eq", "even"))
    client.put("c", cap_records=1)
    delete(client, "a", before_seq=1 << 40)
    before = seen(client)
    for _ in range(3):
        free_all(client)
        client.kill()
        client = client.again()
        assert seen(client) == before
    client.put("a", idempotency_window_ms=500_000)
    client.later(200_000)
    client.kill()
    client = client.again()
    assert client.append("a", 1, key="a3")[1]
    assert not client.append("b", 1, key="b3")[1]
    client.kill()


def test_a_start_reads_no_extent_without_live_keys(client: Sealer) -> None:
    for number in range(40):
        client.append("a", number)
    client.append("b", 1, key="old")
    fill(client, "c", rounds=12)  # until it is sealed
    client.seal()
    assert sealed(client, "a")
    assert sealed(client, "b")
    client.later(130_000)
    client.kill()
    again = client.again()
    assert len(again.shard.segments.maps) == 0
    again.kill()


def test_a_reused_key_identifies_the_later_write(client: Sealer) -> None:
    client.append("a", 1, key="k")
    client.later(130_000)
    client.now = client.now._replace(ts=client.now.ts - 130_000)  # the wall clock is set back
    assert client.append("a", 2, key="k") == (2, False)
    client.kill()
    again = client.again()
    assert again.append("a", 3, key="k") == (2, True)
    again.kill()
