"""Small runs of ``python -m tests.campaigns.idle``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import idle

pytestmark = pytest.mark.slow


def test_simultaneous_and_reconnecting_clients_are_served_and_their_resources_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "AIM_MS", 1000.0)  # The program measures; here the machine is busy
    summary = idle.campaign(tmp_path / "data", seed=1, streams=200, slow=40, rounds=1, seconds=0.5)
    assert not summary.problems, str(summary)
    assert summary.counts["responses after a kill"]
