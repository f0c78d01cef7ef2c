"""Log output at a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.support.polling import is_readable
from topics.process.terminal import LineRenderer

ROOT = Path(__file__).parents[2]
LISTENING: dict[str, Any] = {
    "event": "listening",
    "url": "http://h:1",
    "auth": "none",
    "keys": 0,
    "shards": 2,
}


def rendered(sentences: LineRenderer, **event: Any) -> str:
    """Return the line without its time."""
    event = {"process": "supervisor", **event}
    line = sentences({"pid": 7, "level": "info", "time": "T", **event})
    assert re.match(r"\d\d:\d\d:\d\d ", line)
    return line[9:]


@pytest.fixture
def plain() -> LineRenderer:
    return LineRenderer(is_colored=False)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"event": "disk full", "process": "shard 1", "path": "/d"},
            "shard 1 disk full: path /d",
        ),
        (
            {"event": "shard recovered", "process": "shard 0", "topics": 3},
            "shard 0 recovered: topics 3",
        ),
        ({"event": "start failed", "reason": "no room"}, "start failed: no room"),
        (
            {"event": "killing", "killed": ["a", "b"], "uptime_s": 2, "some_bytes": 3, "s": 4},
            "killing: killed a b, uptime 2 s, some 3 bytes, s 4",
        ),
        (
            {"event": "failed", "effect": "no data", "retry_in_s": 1, "error": "E", "reason": None},
            "failed: E, no data, retry in 1 s",
        ),
        ({"event": "two\nlines", "x": "\x1b[1m"}, r'"two\nlines": x "\u001b[1m"'),
        ({"event": "failed", "exception": "Traceback\n  x"}, "failed\nTraceback\n  x"),
        ({"event": "process started", "spawns": 2, "child_pid": 8}, "process started: spawns 2"),
        ({"event": "process ended", "signal": "SIGKILL"}, "process ended: signal SIGKILL"),
        ({"event": "signal received", "signal": "SIGHUP"}, "signal received: signal SIGHUP"),
        ({"event": "listening"}, "listening"),
    ],
)
def test_an_event_is_shown_as_a_sentence(
    plain: LineRenderer, event: dict[str, Any], line: str
) -> None:
    assert rendered(plain, **event) == f"info     {line}"


@pytest.mark.parametrize(
    "event",
    [
        {"event": "file limit set", "soft_limit": 5},
        {"event": "process started", "spawns": 1},
        {"event": "process ended", "exit_code": 0},
    ],
)
def test_routine_events_are_omitted_at_a_terminal(
    plain: LineRenderer, event: dict[str, Any]
) -> None:
    with pytest.raises(structlog.DropEvent):
        rendered(plain, **event)


def test_the_last_line_of_a_start_shows_the_url_and_the_data_directory(plain: LineRenderer) -> None:
    line = rendered(plain, **LISTENING, data_dir=str(Path.cwd() / "data"))
    assert line == "info     starting  http://h:1  2 shards, no keys"
    ready = rendered(plain, event="ready", topics=1)
    assert ready == "info     ready  http://h:1  data data (1 topic)"
    keys = {"auth": "keys", "keys": 3, "data_dir": "/else"}
    assert rendered(plain, **{**LISTENING, **keys}).endswith("2 shards, 3 keys")
    ready = rendered(plain, event="ready with damaged shards", topics=0, damaged=[1])
    assert ready.endswith("data /else (0 topics), shard 1 is damaged")


def test_ctrl_c_shows_the_effect_of_the_next_one(plain: LineRenderer) -> None:
    lines = [rendered(plain, event="signal received", signal="SIGINT") for _ in range(2)]
    assert lines == [
        "info     Ctrl-C: the server stops; press it again to kill the server",
        "info     Ctrl-C again: the server is killed",
    ]


def test_levels_have_colours() -> None:
    colored = LineRenderer(is_colored=True)
    assert "\x1b[31merror   \x1b[0m no" in colored(
        {"process": "supervisor", "level": "error", "event": "no"}
    )


class AtTerminal:
    """A server whose stderr is a terminal."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.shown = ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "topics", "serve", "--data-dir", "data", "--port", str(port)],
            cwd=data_dir,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, text: str) -> None:
        while text not in self.shown:
            assert is_readable(self._ours, 30), self.shown
            self.shown += os.read(self._ours, 4096).decode().replace("\r\n", "\n")

    def end(self) -> int:
        code = self.process.wait(30)
        os.close(self._ours)
        return code


@pytest.mark.slow
def test_a_start_at_a_terminal_ends_with_the_ready_line(tmp_path: Path) -> None:
    server = AtTerminal(tmp_path, 0)
    try:
        server.until("topics)\n")
        *_, last = server.shown.splitlines()
        assert re.fullmatch(
            r"\S+ info     ready  http://127\.0\.0\.1:\d+  data data \(0 topics\)", last
        )
        assert "pid" not in server.shown
    finally:
        server.process.send_signal(signal.SIGINT)
    server.until("Ctrl-C: the server stops")
    server.until("stopped: exit code 0")
    assert server.end() == 0


@pytest.mark.slow
def test_a_port_in_use_is_reported_in_one_line_with_the_setting_to_change(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as blocker:
        port = blocker.getsockname()[1]
        server = AtTerminal(tmp_path, port)
        server.until("selects another port\n")
        assert server.end() == 1
    *_, line = server.shown.splitlines()
    assert f"port {port} of 127.0.0.1; TOPICS_PORT or --port selects another port" in line
