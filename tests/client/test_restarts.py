"""The client while its server is killed or stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.client_kills import campaign
from tests.client.subscribing import Answering, stream
from topics.client import CaughtUp, Topics
from topics.formats.api.watch import CursorsId


@pytest.mark.slow
# forks in a process with threads
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_kills_and_forks_only_cause_pauses(tmp_path: Path) -> None:
    """Each record is stored once and in order, each is seen once, and no job is lost."""
    summary = campaign(tmp_path / "data", 7, kills=4, forks=4, shutdown_s=30.0)
    assert summary.problems == []


@pytest.mark.slow
def test_pauses_grow_while_streams_report_that_the_server_is_stopping() -> None:
    stops = b'event: error\ndata: {"code":503,"error":"the server is shutting down"}\n\n'
    caught_up = b'id: %b\nevent: caught-up\ndata: {"topic":"t","head_seq":1}\n\n'
    last = caught_up % CursorsId({"t": (1, 7)}).text()
    pauses: list[float] = []
    with Answering(*[stream(stops)] * 4, stream(last, then=b": hb\n\n")) as server:
        client = Topics(server.url, on_pause=lambda _failure, pause_s: pauses.append(pause_s))
        with client, client.watch("t") as events:
            assert next(events) == CaughtUp(head_seq=1, topic="t")
    for pause_s, most_s in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert most_s / 2 <= pause_s <= most_s
