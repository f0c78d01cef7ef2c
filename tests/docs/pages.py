"""Pages: README and topics/docs, and a terminal on which their blocks run as if a person typed
them.

    ```sh                   a script; it must end with exit code 0 and show no error of the API
    ```python               a complete program, likewise
    ```sh exit-7            ends with this exit code
    ```sh until-ctrl-c      runs alongside the following blocks; Ctrl-C ends it with its section
    ```sh no-run: REASON    is not run by the tests
    ```text                 directly after a block: the output of the block

In shown output ``...`` matches anything. Numbers, long ids and the width of spaces are masked.
Blocks of other languages are only shown.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.api import Api
from tests.support.server import Server

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "topics/docs").glob("*.md"))]
FENCE: Final = re.compile(
    r"^```(?P<language>[\w-]*)(?: (?P<how>[^\n]+))?\n(?P<code>.*?)^```$"
    r"(?:\n+```text\n(?P<shown>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
SECTION: Final = re.compile(r"^## ", re.MULTILINE)
ADDRESS: Final = "127.0.0.1:4000"  # in all pages
SERVE: Final = "topics serve\n"  # the page starts its server
READY: Final = re.compile(r"ready +http://127\.0\.0\.1:(\d+)")
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
LONG_ID: Final = re.compile(r"\b(?=[\w-]*\d)[\w-]{20,}")
NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
BLOCK_MAX_S = 120.0
SIZE: Final = struct.pack("HHHH", 40, 100, 0, 0)  # of the terminal: rows, columns


class Block(NamedTuple):
    """Code between two fences. ``shown``: its output, or None if the page does not show it."""

    language: str
    how: str
    code: str
    shown: str | None

    @property
    def runs(self) -> bool:
        return self.language in ("sh", "python") and not self.how.startswith("no-run")

    @property
    def exit_code(self) -> int:
        return int(self.how.removeprefix("exit-")) if self.how.startswith("exit-") else 0


def sections(page: Path) -> Iterator[list[Block]]:
    """Return the blocks of a page by section."""
    for section in SECTION.split(page.read_text()):
        yield [
            Block(found["language"], found["how"] or "", found["code"], found["shown"])
            for found in FENCE.finditer(section)
        ]


def masked(text: str) -> str:
    """Return the output without its variable parts."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    return NUMBER.sub("N", LONG_ID.sub("ID", "\n".join(lines)))


def agrees(shown: str, output: str) -> bool:
    """Return whether the output of a terminal matches the output in a page."""
    parts = map(re.escape, masked(shown).split("..."))
    return re.fullmatch(".*".join(parts), masked(output), re.DOTALL) is not None


class Running:
    """A block that runs on its own terminal until it ends or is closed."""

    def __init__(self, block: Block, file: Path, cwd: Path, env: Mapping[str, str]) -> None:
        self.block, self._output = block, b""
        self._screen, self._terminal = pty.openpty()
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, SIZE)
        settings = termios.tcgetattr(self._terminal)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        file.write_text(block.code)
        interpreter = ["sh", "-e"] if block.language == "sh" else [sys.executable]
        # The first terminal that a session leader opens becomes its controlling terminal, which
        # sends it Ctrl-C. A test run that was started in the background ignores Ctrl-C and passes
        # this on to its children.
        script = ["env", "--default-signal=INT", "sh", "-c", 'exec <"$0" >"$0" 2>&1; exec "$@"']
        self.process = subprocess.Popen(
            [*script, os.ttyname(self._terminal), *interpreter, str(file)],
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Collect the output until the last process closes the terminal."""
        with suppress(OSError):
            while chunk := os.read(self._screen, 1 << 16):
                self._output += chunk

    def close(self) -> None:
        """End all of its processes, and read the remaining output."""
        if self._terminal < 0:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._terminal)
        self._terminal = -1
        self._reader.join(BLOCK_MAX_S)
        os.close(self._screen)

    @property
    def output(self) -> str:
        return COLOUR.sub("", self._output.decode("utf-8", "replace").replace("\r\n", "\n"))

    def _wait(self) -> int:
        """Return the exit code, and all output."""
        try:
            return self.process.wait(BLOCK_MAX_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end\n{self}") from None
        finally:
            self.close()

    def end(self) -> None:
        """Wait for the end and check the result. Raise `AssertionError`."""
        code = self._wait()
        assert code == self.block.exit_code, self
        assert self.agrees, self
        assert self.block.shown or '"error"' not in self.output, self

    def interrupt(self) -> None:
        """Press Ctrl-C after the block has printed all output that the page shows."""
        wait_until(lambda: self.agrees, self)
        os.write(self._screen, b"\x03")
        self._wait()

    @property
    def agrees(self) -> bool:
        return self.block.shown is None or agrees(self.block.shown, self.output)

    def __str__(self) -> str:
        return f"{self.block.code}\n--- shows\n{self.output}\n--- not\n{self.block.shown}"


def wait_until(condition: Callable[[], bool], running: Running) -> None:
    """Wait for a condition. Raise `AssertionError` with the output of the block."""
    until = time.monotonic() + BLOCK_MAX_S
    while not condition():
        assert time.monotonic() < until, str(running)
        time.sleep(0.02)


class Reader:
    """Types the blocks of a page as a person does. The server is the one that the page starts, or a
    new one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._cwd = folder, folder / "work"
        self._cwd.mkdir()
        self._api: Api | None = None
        self._numbers = itertools.count(1)
        inherited = {name: text for name, text in os.environ.items() if "TOPICS_" not in name}
        path = (commands(folder / "bin"), Path(sys.executable).parent, os.environ["PATH"])
        self._env = inherited | {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "PATH": ":".join(map(str, path)),
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TERM": "dumb",
            "TOPICS_PORT": "0",  # of a server that the page starts
        }

    def read(self, page: Path) -> None:
        """Run all blocks. Raise `AssertionError` if the page is wrong."""
        parts = [[block for block in section if block.runs] for section in sections(page)]
        with ExitStack() as stack:
            if not any(block.code == SERVE for part in parts for block in part):
                server = stack.enter_context(Server(self._cwd / "topics-data", shards=2))
                self._use(*server.address)
            stack.callback(self._leave)
            for part in parts:
                self._read_section(part)

    def _read_section(self, section: list[Block]) -> None:
        with ExitStack() as stack:
            background: list[Running] = []
            for block in section:
                streams = self._streams()
                running = self._start(block)
                stack.callback(running.close)
                if block.how == "until-ctrl-c":
                    background.append(running)
                    self._wait_for_begin(running, streams)
                else:
                    running.end()
            while background:
                background.pop().interrupt()

    def _use(self, host: str, port: int) -> None:
        self._api = Api((host, port))
        self._env["TOPICS_URL"] = f"http://{host}:{port}"

    def _leave(self) -> None:
        if self._api is not None:
            self._api.close()

    def _start(self, block: Block) -> Running:
        file = self._folder / f"block-{next(self._numbers)}"
        if self._api is None:
            return Running(block, file, self._cwd, self._env)
        address = "{}:{}".format(*self._api.address)
        here = block._replace(
            code=block.code.replace(ADDRESS, address),
            shown=block.shown and block.shown.replace(ADDRESS, address),
        )
        return Running(here, file, self._cwd, self._env)

    def _streams(self) -> int:
        """Return the number of open streams at the server."""
        if self._api is None:
            return 0
        answer = self._api.call("GET", "/v0/metrics", None, {"Accept": "application/json"})
        streams: int = answer.json()["topics_sse_connections"]
        return streams

    def _wait_for_begin(self, running: Running, streams: int) -> None:
        """Wait until the block follows a topic, has printed output, or is a ready server."""
        if running.block.code == SERVE:
            wait_until(lambda: bool(READY.search(running.output)), running)
            (found,) = READY.findall(running.output)
            self._use("127.0.0.1", int(found))
            return
        wait_until(
            lambda: (
                bool(running.output)
                or self._streams() > streams
                or running.process.poll() is not None
            ),
            running,
        )


def commands(folder: Path) -> Path:
    """Create a folder with the commands of the checkout."""
    folder.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, entry in project["scripts"].items():
        module, function = entry.split(":")
        program = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        (folder / name).write_text(f"#!{sys.executable}\n{program}")
        (folder / name).chmod(0o755)
    return folder
