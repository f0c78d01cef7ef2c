"""Runs the command line against a real server: in this process (`topics`), or as a separate process
(`started`).
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.client.conftest import client, name, url_of
from tests.support.program import Program
from tests.support.server import Server
from topics import cli

ROOT = Path(__file__).parents[2]
__all__ = ["client", "name"]  # fixtures of both


class Done(NamedTuple):
    """A completed command."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """The objects that ``--json`` wrote."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error that ``--json`` wrote."""
        (line,) = self.err.splitlines()
        error: dict[str, Any] = json.loads(line)["error"]
        return error


Run = Callable[..., Done]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("cli") / "data", shards=2) as server:
        yield server


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of the server, which the environment also specifies."""
    for variable in [*os.environ]:
        if variable.startswith("TOPICS_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("TOPICS_URL", url_of(server))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return url_of(server)


@pytest.fixture
def topics(url: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Run:
    """Run a command within this process: ``topics("ls", "--json", given="stdin")``."""

    def run(*arguments: str, given: str | bytes = "") -> Done:
        capfdbinary.readouterr()
        data = given if isinstance(given, bytes) else given.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = cli.main(arguments)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Done(code, out.decode(), err.decode())

    return run


def _restore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(*arguments: str, **options: Any) -> Program:
    """Start the program as a process with pipes. It does not inherit that SIGINT and SIGHUP are
    ignored, as they are in the background and under nohup.
    """
    command = [sys.executable, "-m", "topics", *arguments]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    fixed: dict[str, Any] = {"cwd": ROOT, "text": True, "preexec_fn": _restore_signals}
    return Program(command, **{**fixed, **pipes, **options})
