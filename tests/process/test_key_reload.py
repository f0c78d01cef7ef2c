"""What a hang-up does to the keys of a server, at times that the test passes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from topics.actors.link.board import Board
from topics.engine.access import Access
from topics.process.key_reload import GIVE_UP_S, SETTLE_S, KeyReload
from topics.process.keys import KeyFile, KeySources


class Server:
    """A supervisor's keys and their file."""

    def __init__(self, path: Path, text: str = "old:r,kept:r:a") -> None:
        self.path, self.board = path, Board(0)
        path.write_text(text)
        fixed = Access.parse("fixed").principals
        self.sources = KeySources(fixed, (KeyFile(path, "FILE"),))
        self.reload = KeyReload(self.board, self.sources, self.sources.read_again())
        self.now = 100.0

    def hang_up(self, text: str | None = None) -> None:
        if text is not None:
            self.path.write_text(text)
        self.reload.hang_up(self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.reload.advance(self.now)

    def keys(self) -> Access:
        return self.reload.table.read()[1]

    def known(self, *asked: str) -> list[bool]:
        return [self.keys().authenticate(secret.encode()) is not None for secret in asked]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "keys")


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]


def test_the_keys_of_the_start_are_published(server: Server) -> None:
    assert server.known("fixed", "old", "kept") == [True, True, True]
    assert server.reload.table.generation == 1
    assert server.reload.next_at == math.inf


def test_a_hang_up_replaces_the_keys_of_the_file(server: Server) -> None:
    with capture_logs() as logs:
        server.hang_up("kept:w:a,new")
        server.wait(SETTLE_S * 0.9)
        assert server.known("old", "new") == [True, False]
        server.wait(SETTLE_S * 0.1)
    assert server.known("fixed", "old", "kept", "new") == [True, False, True, True]
    assert logs == [
        {
            "event": "keys reloaded",
            "log_level": "info",
            "keys": 3,
            "added": 1,
            "removed": 1,
            "changed": 1,
        }
    ]
    assert server.reload.next_at == math.inf
    assert server.board.keys_reload_failed == 0


def test_the_same_keys_in_another_order_change_nothing(server: Server) -> None:
    server.hang_up("kept:read:a\n# a comment\nold:r")
    server.wait(SETTLE_S)
    assert server.reload.table.generation == 1


@pytest.mark.parametrize("text", ["", "old:r,hunter2:fly", "hunter2,hunter2", "fixed:r", None])
def test_a_wrong_file_changes_nothing_is_logged_and_counted(
    server: Server, text: str | None
) -> None:
    if text is None:
        server.path.unlink()
    with capture_logs() as logs:
        server.hang_up(text)
        server.wait(SETTLE_S)
    assert server.known("fixed", "old", "kept") == [True, True, True]
    assert (server.reload.table.generation, server.board.keys_reload_failed) == (1, 1)
    assert events(logs) == ["keys not reloaded, the earlier ones stay"]
    assert "hunter2" not in repr(logs)
    server.hang_up("right")
    server.wait(SETTLE_S)
    assert server.known("right", "old") == [True, False]


def test_without_a_file_a_hang_up_is_ignored() -> None:
    board = Board(0)
    access = Access.parse("fixed")
    reload = KeyReload(board, KeySources(access.principals), access)
    with capture_logs() as logs:
        reload.hang_up(1.0)
        reload.advance(9.0)
    assert (events(logs), reload.next_at) == (["hang-up ignored"], math.inf)
    assert (reload.table.generation, board.keys_reload_failed) == (1, 0)


def test_a_file_that_is_still_written_is_read_when_it_has_come_to_rest(server: Server) -> None:
    """The half of the file would give the key ``new`` every right."""
    server.hang_up("kept:r:a,new")
    server.wait(SETTLE_S / 2)
    server.path.write_text("kept:r:a,new:read:tenant:")
    server.wait(SETTLE_S / 2)
    assert server.known("new") == [False]
    server.wait(SETTLE_S)
    found = server.keys().authenticate(b"new")
    assert found is not None
    assert found.prefixes == ("tenant:",)


def test_hang_ups_at_once_are_one_reload(server: Server) -> None:
    with capture_logs() as logs:
        server.hang_up("new")
        server.hang_up()
        server.wait(SETTLE_S / 2)
        server.hang_up()
        server.wait(SETTLE_S / 2)
        server.wait(GIVE_UP_S)
    assert events(logs) == ["keys reloaded"]


def test_a_file_that_never_rests_is_given_up(server: Server) -> None:
    server.hang_up()
    with capture_logs() as logs:
        for number in range(int(GIVE_UP_S / SETTLE_S)):
            assert not logs
            server.path.write_text(f"new{'x' * number}")
            server.wait(SETTLE_S)
    assert logs[0]["reason"] == "the key files do not come to rest"
    assert server.known("old") == [True]
    assert server.board.keys_reload_failed == 1


def test_a_file_that_changes_while_it_is_read_is_read_once_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = KeyFile.read

    def read_and_replace(file: KeyFile, *, again: bool = False) -> Access:
        monkeypatch.setattr(KeyFile, "read", read)
        access = read(file, again=again)
        file.path.write_text("last")
        return access

    monkeypatch.setattr(KeyFile, "read", read_and_replace)
    server.hang_up("first")
    server.wait(SETTLE_S)
    assert server.reload.table.generation == 1
    server.wait(SETTLE_S)
    assert server.known("first", "last") == [False, True]
    assert server.reload.table.generation == 2


def test_more_keys_than_the_table_has_room_for_change_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.reload.table, "_half_bytes", 200)
    server.hang_up(",".join(f"key{number}" for number in range(10)))
    with capture_logs() as logs:
        server.wait(SETTLE_S)
    assert logs[0]["reason"].startswith("the keys and their prefixes are too long")
    assert server.known("old") == [True]
