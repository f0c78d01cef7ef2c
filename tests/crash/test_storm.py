"""A small storm of what ``python -m tests.campaigns.storm`` does at large."""

from __future__ import annotations

import pytest

from tests.campaigns.storm import campaign

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["watch", "ask", "killed"])
def test_all_who_come_back_at_once_are_answered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.campaigns.storm.CALM_S", 0.2)
    assert campaign(kind, clients=200, storms=1)
