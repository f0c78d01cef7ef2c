"""Ten thousand idle event streams and two thousand slow connections: what they cost a writer.

Runs as a program: ``python -m tests.campaigns.idle --streams 10000 --slow 2000 --rounds 2``. A
writer appends one record after the other, alternately alone and beside the crowd (`idle_crowd`).

What must hold:

- every stream opens and none ends by itself; slow connections are thrown off, or may go on
- the writer hears nothing but successes, and its p99 beside the crowd is told beside the one alone
- when the crowd has gone, the front has as many descriptors as before, the metrics tell of no
  stream, and all slots are free: the cap is exactly the crowd, which could not come again otherwise
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.bench.processes import cpu_s
from tests.campaigns.hostile import Bystander, beside
from tests.campaigns.idle_crowd import TOPICS, CrowdState, run
from tests.support.api import Api, ok
from tests.support.server import Server, open_files, rss_bytes
from topics.process.children import raise_file_limit

SPARE_FILES = 500  # of a front: links, listeners, the writer
BACK_S = 20.0  # until the front has noticed that all have gone
OPEN_S = 300.0
AIM_MS = 10.0  # what the crowd may add to the writer's p99
MIB = 2**20


class Trial:
    """One server and its crowd."""

    def __init__(self, server: Server, streams: int, slow: int, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._streams, self._slow = streams, slow
        self._front = server.roles()["front 0"]
        self._alone: list[float] = []
        self._beside: list[float] = []
        self.problems: list[str] = []
        context = multiprocessing.get_context("spawn")
        self._crowd, other = context.Pipe()
        self._process = context.Process(
            target=run, args=(server.address, streams, slow, other), daemon=True
        )
        self._process.start()
        other.close()
        self._heard(self._crowd)

    def round(self) -> None:
        """The writer alone, the crowd, the writer beside it, the crowd goes."""
        files = open_files(self._front)
        rss = rss_bytes(self._front)
        self._alone += self._write("alone")
        began = time.monotonic()
        opened = self._say("open")
        print(
            f"{opened.streams} streams and {opened.slow} slow connections in"
            f" {time.monotonic() - began:.1f} s"
        )
        if opened.refused or opened.streams != self._streams:
            self.problems.append(f"{opened.streams} streams are open; refused: {opened.refused}")
        self._beside += self._write("beside the crowd")
        held = self._say("tell")
        used = rss_bytes(self._front) - rss
        print(
            f"front: {open_files(self._front)} descriptors, before {files}; {used / MIB:+.0f} MiB,"
            f" {used / max(1, held.streams + held.slow) / 1024:.1f} KiB for each connection\n"
            f"{held.thrown_off} slow connections were thrown off, {held.ended} streams ended"
        )
        if self._told() != held.streams:
            self.problems.append(f"the metrics tell of {self._told()} streams")
        if held.ended:
            self.problems.append(f"{held.ended} streams ended by themselves")
        self._say("close")
        self._wait_back(files)

    def _write(self, how: str) -> list[float]:
        cpu = cpu_s(self._front)
        with beside(self._server, Bystander) as writer:
            time.sleep(self._seconds)
        share = (cpu_s(self._front) - cpu) / self._seconds
        print(f"writer {how}: {writer}; front {share:.0%} of a core")
        self.problems += writer.trouble[:3]
        return writer.took_ms

    def _wait_back(self, files: int) -> None:
        """Until the front has let go of every connection, and the metrics say so."""
        began = time.monotonic()
        while (left := open_files(self._front) - files) > 0 or self._told() > 0:
            if time.monotonic() - began > BACK_S:
                self.problems.append(f"{left} descriptors stay open, {self._told()} streams told")
                return
            time.sleep(0.05)
        print(f"all descriptors and slots are back after {time.monotonic() - began:.1f} s")

    def _told(self) -> int:
        """The streams that the metrics know of."""
        with Api(self._server.address) as api:
            text = api.call("GET", "/v0/metrics").body.decode()
        found = re.search(r"^topics_sse_connections (\d+)", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1])

    def _say(self, order: str) -> CrowdState:
        self._crowd.send(order)
        return self._heard(self._crowd)

    def _heard(self, crowd: Connection) -> CrowdState:
        assert crowd.poll(OPEN_S), "the crowd does not answer"
        state = crowd.recv()
        assert isinstance(state, CrowdState), state
        return state

    def finish(self) -> None:
        self._crowd.close()
        self._process.join(30)
        alone, crowded = (statistics.quantiles(t, n=100)[98] for t in (self._alone, self._beside))
        told = f"p99 of the writer: {alone:.1f} ms alone, {crowded:.1f} ms beside the crowd"
        print(told)
        if crowded > alone + AIM_MS:
            self.problems.append(f"{told}; the aim is {AIM_MS:.0f} ms more")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part of a round")
    arguments = parser.parse_args()
    most = raise_file_limit()[1] - SPARE_FILES
    slow = min(arguments.slow, most // 2)
    streams = min(arguments.streams, most - slow)
    if (streams, slow) != (arguments.streams, arguments.slow):
        print(f"only {streams} streams and {slow} slow connections: descriptors are limited")
    env = {"max_sse_connections": streams, "max_watch_sessions": streams}
    with (
        tempfile.TemporaryDirectory(prefix="topics-idle-") as directory,
        Server(Path(directory) / "data", shards=2, **env) as server,
    ):
        roles = server.roles()
        with Api(server.address) as api:
            for number in range(TOPICS):
                ok(api.append(f"idle-{number}", number), 201)
        trial = Trial(server, streams, slow, arguments.seconds)
        for _ in range(arguments.rounds):
            trial.round()
        trial.finish()
        if server.roles() != roles:
            trial.problems.append(f"a process was replaced: {server.log_tail}")
    print(f"{len(trial.problems)} problems", *trial.problems, sep="\n")
    return 1 if trial.problems else 0


if __name__ == "__main__":
    sys.exit(main())
