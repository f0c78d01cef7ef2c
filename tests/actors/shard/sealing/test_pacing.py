"""Sealing pace: bursts and backlog."""

from __future__ import annotations

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
)
from topics.actors.shard.sealing import pacing


def test_what_comes_in_a_burst_is_sealed_after_it_or_when_it_is_too_much(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "BURST_MIN_BYTES", 1)

    def until_whole(files: int) -> None:
        while client.wal.whole_since(client.sealing.reclaim.replay_from) < files:
            client.append("t", records=[{"data": "x" * 100}])

    until_whole(1)
    client.seal()
    assert client.sealing.sealed == 0, "the log has grown since the last look"
    client.seal()
    assert client.sealing.sealed == 1, "it has not"
    until_whole(1)
    client.seal()
    until_whole(2)
    client.seal()
    assert client.sealing.sealed == 3, "too much waits"


def test_the_more_files_wait_the_less_it_rests() -> None:
    rests = [pacing.pause_after(0.001, waiting) for waiting in range(pacing.BACKLOG_MAX_FILES + 2)]
    assert rests[: pacing.BACKLOG_NORMAL_FILES + 1] == pytest.approx(
        [0.006] * (pacing.BACKLOG_NORMAL_FILES + 1)
    )
    assert rests[pacing.BACKLOG_NORMAL_FILES :] == sorted(
        rests[pacing.BACKLOG_NORMAL_FILES :], reverse=True
    )
    assert rests[pacing.BACKLOG_MAX_FILES - 1] > 0
    assert rests[pacing.BACKLOG_MAX_FILES :] == [0.0, 0.0]
    assert pacing.pause_after(1.0, 0) == pacing.PAUSE_MAX_S
