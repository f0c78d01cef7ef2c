"""Ten thousand idle event streams and two thousand slow connections: measures their cost for a
writer and the effect of simultaneous reconnects.

Runs as a program: ``python -m tests.campaigns.idle --streams 10000 --slow 2000 --rounds 2``. A
writer appends single records: alone, alongside the crowd (`crowd`), and while all clients are reset
and reconnect. Then the same number of keep-alive clients connects. The front is killed, and they
reconnect and wait in the listen queue until the next front accepts them.

These conditions must hold:

- every stream opens, also when all clients reconnect, and the server closes none; slow connections
  are closed or stay open; every client gets a response, but a dying front may reset some clients
- all appends of the writer succeed; its p99 is reported alone and alongside the crowd
- after the crowd has disconnected, the front has the same number of descriptors as before, the
  metrics count no stream, and all slots are free; the cap equals the size of the crowd, which could
  otherwise not reconnect
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from tests.bench.processes import cpu_s, quantiles_ms
from tests.campaigns.crowd import TOPICS, CrowdState, Remote, crowd
from tests.campaigns.hostile import MIB, run_alongside
from tests.campaigns.killer import Summary, program
from tests.support.api import Api, ok
from tests.support.server import Server, kill_one, open_files, rss_bytes
from topics.process.children import raise_file_limit

SPARE_FILES = 500  # descriptors of a front for links, listeners and the writer
RECOVERY_MAX_S = 20.0  # for the front to detect that all clients have disconnected
AIM_MS = 10.0  # the permitted increase of the writer's p99 by the crowd


class Trial:
    """One server and its crowds."""

    def __init__(self, server: Server, seconds: float, summary: Summary) -> None:
        self._server, self._seconds, self._summary = server, seconds, summary
        self._front = server.roles()["front 0"]
        self._took_ms: dict[str, list[float]] = {"alone": [], "alongside the crowd": []}

    def round(self, remote: Remote, streams: int) -> None:
        """Measure the writer alone and alongside the crowd, let all clients reconnect, and close
        them.
        """
        files, rss = open_files(self._front), rss_bytes(self._front)
        self._write("alone")
        self.connect(remote, "open", streams)
        self._write("alongside the crowd")
        self.connect(remote, "reconnect", streams, again=True)
        held = remote.command("report")
        used, clients = rss_bytes(self._front) - rss, held.connected.total()
        self._summary.print_progress(
            f"front: {open_files(self._front)} descriptors, before {files}; {used / MIB:+.0f} MiB,"
            f" {used / max(1, clients) / 1024:.1f} KiB for each connection;"
            f" {held.ended['slow']} slow connections were closed"
        )
        if (
            not self._stream_count() == held.connected["watchers"] == streams
            or held.ended["watchers"]
        ):
            self._summary.problems.append(
                f"the metrics report {self._stream_count()} streams; {held}"
            )
        remote.command("disconnect")
        self._wait_recovered(files)

    def connect(self, remote: Remote, how: str, clients: int, *, again: bool = False) -> CrowdState:
        """Let all clients connect, and check that they get responses."""
        with run_alongside(self._server) as writer:
            state = remote.command("connect", again)
        p50, p99, _, most = quantiles_ms([ms / 1000 for ms in state.first_byte_ms] or [0])
        self._summary.print_progress(
            f"{how}: first byte p50 {p50:.1f} p99 {p99:.1f} max {most:.1f} ms; writer {writer}"
        )
        if state.statuses != {"200": clients} or state.lost:
            self._summary.problems.append(
                f"{how}: {state.statuses} of {clients}, {state.lost} lost"
            )
        self._summary.problems += writer.problems[:3]
        return state

    def _write(self, how: str) -> None:
        cpu = cpu_s(self._front)
        with run_alongside(self._server) as writer:
            time.sleep(self._seconds)
        share = (cpu_s(self._front) - cpu) / self._seconds
        self._summary.print_progress(f"writer {how}: {writer}; front {share:.0%} of a core")
        self._summary.problems += writer.problems[:3]
        self._took_ms[how] += writer.took_ms

    def _wait_recovered(self, files: int) -> None:
        """Wait until the front has closed every connection, and the metrics report this."""
        began = time.monotonic()
        while (left := open_files(self._front) - files) > 0 or self._stream_count() > 0:
            if time.monotonic() - began > RECOVERY_MAX_S:
                problem = f"{left} descriptors stay open, {self._stream_count()} streams reported"
                self._summary.problems.append(problem)
                return
            time.sleep(0.05)

    def _stream_count(self) -> int:
        """Return the number of streams in the metrics."""
        with Api(self._server.address) as api:
            text = api.call("GET", "/v0/metrics").body.decode()
        found = re.search(r"^topics_sse_connections (\d+)", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1])

    def finish(self) -> None:
        alone, crowded = (quantiles_ms([ms / 1000 for ms in t])[1] for t in self._took_ms.values())
        text = f"p99 of the writer: {alone:.1f} ms alone, {crowded:.1f} ms alongside the crowd"
        self._summary.print_progress(text)
        if crowded > alone + AIM_MS:
            self._summary.problems.append(f"{text}; the limit is {AIM_MS:.0f} ms more")


def killed(server: Server, clients: int, summary: Summary) -> None:
    """Kill the front of keep-alive clients, which reconnect immediately. The next front must serve
    them.
    """
    with crowd(server.address, {"keep-alive": clients}) as remote:
        remote.command("connect", False)
        kill_one(server.roles()["front 0"])
        state = remote.command("connect", True)
        if {*state.statuses} - {"200"}:
            summary.problems.append(f"killed: {state.statuses} of {clients}")
        p50, _, _, most = quantiles_ms([ms / 1000 for ms in state.first_byte_ms] or [0])
        summary.print_progress(
            f"killed: first byte p50 {p50:.1f} max {most:.1f} ms, {state.lost} reset"
        )
        summary.counts["responses after a kill"] = state.statuses["200"]


def campaign(
    data_dir: Path, *, seed: int, streams: int, slow: int, rounds: int, seconds: float
) -> Summary:
    """Connect and disconnect crowds. ``seconds`` is the duration of each part of a round."""
    summary = Summary(seed)
    most = raise_file_limit()[1] - SPARE_FILES
    slow, streams = min(slow, most // 2), min(streams, most - min(slow, most // 2))
    env = {"max_sse_connections": streams, "max_watch_sessions": streams}
    with Server(data_dir, shards=2, **env) as server:
        roles = server.roles()
        with Api(server.address) as api:
            for number in range(TOPICS):
                ok(api.append(f"idle-{number}", number), 201)
        trial = Trial(server, seconds, summary)
        with crowd(server.address, {"watchers": streams, "slow": slow}) as remote:
            for _ in range(rounds):
                trial.round(remote, streams)
        trial.finish()
        if server.roles() != roles:
            summary.problems.append(f"a process was replaced: {server.log_tail}")
        killed(server, streams, summary)
    summary.counts["streams"], summary.counts["slow"] = streams, slow
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, streams=10_000, slow=2000, rounds=2, seconds=10.0))
