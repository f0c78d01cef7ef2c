"""Servers that the tests fork behave like servers that are started as programs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.server import Server, kill_one
from tests.support.zygote import Forked, Zygote

pytestmark = pytest.mark.slow


@pytest.fixture
def zygote(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    zygote = Zygote()
    monkeypatch.setattr(Server, "zygote", zygote)
    yield
    zygote.close()


@pytest.mark.usefixtures("zygote")
def test_a_forked_server_leads_its_session_and_serves_and_stops(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        assert isinstance(server.process, Forked)
        assert len(server.pids()) == 1 + len(server.wait_roles(2))
        with Api(server.address) as api:
            ok(api.append("t", 1), 201)
        open_files = Path(f"/proc/{server.pid}/fd").iterdir()
        assert {"0", "1", "2"} <= {file.name for file in open_files}
        server.stop()
        server.start()
        with Api(server.address) as api:
            assert [record["data"] for record in api.read("t")] == [1]
        kill_one(server.pid)
        assert server.wait_exit(10) == -signal.SIGKILL


@pytest.mark.usefixtures("zygote")
def test_a_forked_server_ends_like_a_started_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = Server(tmp_path / "data", shards="many")
    forked.spawn()
    monkeypatch.setattr(Server, "zygote", None)
    started = Server(tmp_path / "data", shards="many")
    started.spawn()
    assert forked.wait_exit(10) == started.wait_exit(10) != 0
    assert "TOPICS_SHARDS" in forked.logged
    assert forked.logged.replace(str(forked.pid), "") == started.logged.replace(
        str(started.pid), ""
    )
