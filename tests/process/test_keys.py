"""Sources of keys, and their reload by a hang-up signal, at times that the test specifies."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from topics.actors.link.board import Board
from topics.engine.access import Access
from topics.process import keys
from topics.process.keys import (
    KEY_FILE_MAX_BYTES,
    RELOAD_TIMEOUT_S,
    SETTLE_S,
    KeyFile,
    KeyReload,
    KeySources,
    key_files,
    pop_environment_keys,
)


class Server:
    """The keys of a supervisor and their file."""

    def __init__(self, path: Path, text: str = "old:r,kept:r:a") -> None:
        self.path, self.board = path, Board(0)
        path.write_text(text)
        fixed = Access.parse("fixed").principals
        self.sources = KeySources(fixed, (KeyFile(path, "FILE"),))
        self.reload = KeyReload(self.board, self.sources, self.sources.read_again())
        self.now = 100.0

    def start_reload(self, text: str | None = None) -> None:
        if text is not None:
            self.path.write_text(text)
        self.reload.start_reload(self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.reload.advance(self.now)

    def keys(self) -> Access:
        return self.reload.table.read()[1]

    def known(self, *texts: str) -> list[bool]:
        return [self.keys().authenticate(secret.encode()) is not None for secret in texts]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "keys")


def events(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs]


def test_a_hang_up_reloads_the_keys_of_the_file(server: Server) -> None:
    with capture_logs() as logs:
        server.start_reload("kept:w:a,new")
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


def test_the_same_keys_in_another_order_are_not_a_change(server: Server) -> None:
    server.start_reload("kept:read:a\n# a comment\nold:r")
    server.wait(SETTLE_S)
    assert server.reload.table.generation == 1


@pytest.mark.parametrize("text", ["", "old:r,hunter2:fly", "hunter2,hunter2", "fixed:r", None])
def test_an_invalid_key_file_changes_nothing_and_is_logged_and_counted(
    server: Server, text: str | None
) -> None:
    if text is None:
        server.path.unlink()
    with capture_logs() as logs:
        server.start_reload(text)
        server.wait(SETTLE_S)
    assert server.known("fixed", "old", "kept") == [True, True, True]
    assert (server.reload.table.generation, server.board.keys_reload_failed) == (1, 1)
    assert events(logs) == ["keys not reloaded"]
    assert "hunter2" not in repr(logs)
    server.start_reload("right")
    server.wait(SETTLE_S)
    assert server.known("right", "old") == [True, False]


def test_a_hang_up_without_a_key_file_is_ignored() -> None:
    board = Board(0)
    access = Access.parse("fixed")
    reload = KeyReload(board, KeySources(access.principals), access)
    with capture_logs() as logs:
        reload.start_reload(1.0)
        reload.advance(9.0)
    assert (events(logs), reload.next_at) == (["signal ignored"], math.inf)
    assert (reload.table.generation, board.keys_reload_failed) == (1, 0)


def test_a_key_file_that_is_being_written_is_read_after_its_last_change(server: Server) -> None:
    """The first half of the file would give the key ``new`` all rights."""
    server.start_reload("kept:r:a,new")
    server.wait(SETTLE_S / 2)
    server.path.write_text("kept:r:a,new:read:tenant:")
    server.wait(SETTLE_S / 2)
    assert server.known("new") == [False]
    server.wait(SETTLE_S)
    found = server.keys().authenticate(b"new")
    assert found is not None
    assert found.prefixes == ("tenant:",)


def test_several_hang_ups_in_short_succession_cause_one_reload(server: Server) -> None:
    with capture_logs() as logs:
        server.start_reload("new")
        server.start_reload()
        server.wait(SETTLE_S / 2)
        server.start_reload()
        server.wait(SETTLE_S / 2)
        server.wait(RELOAD_TIMEOUT_S)
    assert events(logs) == ["keys reloaded"]


def test_a_key_file_that_never_stops_changing_is_given_up(server: Server) -> None:
    server.start_reload()
    with capture_logs() as logs:
        for number in range(int(RELOAD_TIMEOUT_S / SETTLE_S)):
            assert not logs
            server.path.write_text(f"new{'x' * number}")
            server.wait(SETTLE_S)
    assert logs[0]["reason"] == "the key files keep changing"
    assert server.known("old") == [True]
    assert server.board.keys_reload_failed == 1


def test_a_key_file_that_changes_while_it_is_read_is_read_once_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = KeyFile.read

    def read_and_replace(file: KeyFile, *, again: bool = False) -> Access:
        monkeypatch.setattr(KeyFile, "read", read)
        access = read(file, again=again)
        file.path.write_text("last")
        return access

    monkeypatch.setattr(KeyFile, "read", read_and_replace)
    server.start_reload("first")
    server.wait(SETTLE_S)
    assert server.reload.table.generation == 1
    server.wait(SETTLE_S)
    assert server.known("first", "last") == [False, True]
    assert server.reload.table.generation == 2


# Sources of keys


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    (tmp_path / "keys").write_text("file-key:r\n")
    return KeyFile(tmp_path / "keys", "TOPICS_API_KEYS_FILE")


def secrets(access: Access, *texts: str) -> list[bool]:
    return [access.authenticate(secret.encode()) is not None for secret in texts]


def test_the_file_and_the_credential_are_found_and_a_missing_credential_is_ignored(
    tmp_path: Path,
) -> None:
    environ = {"TOPICS_API_KEYS_FILE": " keys ", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert list(key_files(environ)) == [KeyFile(Path.cwd() / "keys", "TOPICS_API_KEYS_FILE")]
    credential = tmp_path / keys.CREDENTIAL
    credential.write_text("one")
    found = list(key_files(environ))
    assert found[1] == KeyFile(credential, "$CREDENTIALS_DIRECTORY/topics.api-keys")
    environ["TOPICS_API_KEYS_FILE"] = str(credential)
    assert list(key_files(environ)) == [KeyFile(credential, "TOPICS_API_KEYS_FILE")]


def test_the_keys_of_the_environment_are_removed_from_it() -> None:
    environ = {"TOPICS_API_KEYS": "one,two", "OTHER": "x"}
    assert bytes(pop_environment_keys(environ)) == b"one,two"
    assert environ == {"OTHER": "x"}
    assert not pop_environment_keys(environ)


ONE_BYTE = """
import os
from topics.process.keys import pop_environment_keys
print(bytes(pop_environment_keys(os.environ)), bytes([ord("k")]), "TOPICS_API_KEYS" in os.environ)
"""


def test_a_key_of_one_character_does_not_overwrite_that_character_elsewhere() -> None:
    """CPython shares one object for each byte value."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_BYTE],
        cwd=Path(__file__).parents[2],
        env={"TOPICS_API_KEYS": "k"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("b'k' b'k' False\n", "")


def test_a_key_file_is_read_again_at_the_current_target_of_its_path(tmp_path: Path) -> None:
    """systemd and Kubernetes replace it by a rename or by a new target of a link."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(f"{name}:r")
    (tmp_path / "now").symlink_to("first")
    sources = KeySources(files=(KeyFile(tmp_path / "now" / "keys", "X"),))
    assert secrets(sources.read_again(), "first", "second") == [True, False]
    before = sources.state()
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").replace(tmp_path / "now")
    assert sources.state() != before
    assert secrets(sources.read_again(), "first", "second") == [False, True]
    before = sources.state()
    (tmp_path / "aside").write_text("third::")
    (tmp_path / "aside").replace(tmp_path / "second" / "keys")
    assert sources.state() != before
    assert secrets(sources.read_again(), "second", "third") == [False, True]


def test_the_keys_of_the_environment_are_kept_across_reloads(file: KeyFile) -> None:
    sources = KeySources(Access.parse("fixed:w").principals, (file,))
    assert secrets(sources.read_again(), "fixed", "file-key") == [True, True]
    file.path.write_text("other")
    assert secrets(sources.read_again(), "fixed", "file-key", "other") == [True, False, True]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        ("", "the file contains no key"),
        ("\n# hunter2\n ,\n", "the file contains no key"),
        ("one\nhunter2:fly", "entry 2: a scope is not one of"),
        ("one\nhunter2:r:.x", "entry 2: a name prefix"),
        ("sha256:hunter2", "entry 1: 'sha256:' is not followed by"),
        ("hunter2\nhunter2:r", "the same key is configured twice"),
        ("hunter3", "the same key is configured twice"),
        ("hunter2," * (KEY_FILE_MAX_BYTES // 8 + 1), "the file is longer than 1048576 bytes"),
    ],
)
def test_an_invalid_key_file_is_named_and_none_of_its_text_is_shown(
    file: KeyFile, content: str | None, reason: str
) -> None:
    if content is None:
        file.path.unlink()
    else:
        file.path.write_text(content)
    sources = KeySources(Access.parse("hunter3").principals, (file,))
    with pytest.raises(ValueError, match=reason) as refused:
        sources.read_again()
    assert "hunter" not in str(refused.value)
    if content != "hunter3":
        assert str(refused.value).startswith(f"TOPICS_API_KEYS_FILE='{file.path}': ")


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_key_file_that_is_not_a_regular_file_is_refused_without_waiting(
    file: KeyFile, kind: str
) -> None:
    file.path.unlink()
    if kind == "pipe":
        os.mkfifo(file.path)
    else:
        file.path.mkdir()
    files = Path("/proc/self/fd")
    open_before = len([*files.iterdir()])
    with pytest.raises(ValueError, match=r"not a regular file|Is a directory"):
        KeySources(files=(file,)).read_again()
    assert len([*files.iterdir()]) == open_before


def test_a_pipe_is_accepted_as_a_key_file_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    if os.fork() == 0:
        with (tmp_path / "pipe").open("wb") as pipe:
            pipe.write(b"one\n")
            pipe.flush()
            pipe.write(b"two\n")
        os._exit(0)
    access = KeyFile(tmp_path / "pipe", "X").read()
    assert secrets(access, "one", "two") == [True, True]
    assert os.wait()[1] == 0
