"""Sealing pace: bursts and backlog."""

from __future__ import annotations

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
)
from topics.actors.shard.sealing import pacing
from topics.config import Tuning


def test_a_burst_is_sealed_when_it_is_over_or_when_the_backlog_is_normal(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "BURST_MIN_BYTES", 1)

    def until_whole(files: int) -> None:
        while client.wal.count_full_files(client.sealing.reclaim.replay_from) < files:
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


def test_pauses_get_shorter_with_the_backlog() -> None:
    pauses = [pacing.pause_after(0.001, waiting) for waiting in range(pacing.BACKLOG_MAX_FILES + 2)]
    assert pauses[: pacing.BACKLOG_NORMAL_FILES + 1] == pytest.approx(
        [0.006] * (pacing.BACKLOG_NORMAL_FILES + 1)
    )
    assert pauses[pacing.BACKLOG_NORMAL_FILES :] == sorted(
        pauses[pacing.BACKLOG_NORMAL_FILES :], reverse=True
    )
    assert pauses[pacing.BACKLOG_MAX_FILES - 1] > 0
    assert pauses[pacing.BACKLOG_MAX_FILES :] == [0.0, 0.0]
    assert pacing.pause_after(1.0, 0) == pacing.PAUSE_MAX_S


def test_without_the_switch_there_are_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "TUNING", Tuning(sealing_pauses=False))
    assert [pacing.pause_after(0.001, backlog) for backlog in range(3)] == [0.0] * 3
