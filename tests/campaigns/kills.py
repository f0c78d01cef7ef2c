"""A mixed load while the front, a shard or all processes are killed and networks are cut. The
clients of the simulation use a real server over TCP, and the judge of the simulation checks the
history.

A run is a compressed day of `tests.simulation.work` over three shards with small log files, then a
clean restart, then a read of all data. The history of a run that breaks a promise is printed. Runs
as a program: ``python -m tests.campaigns.kills --seconds 60 --kills 20 --seed 7``. The seed
determines the requests of the clients and the killed processes, but not the operations that a kill
interrupts.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from tests.campaigns.killer import EVERYTHING, Summary, damage, deaths_by_themselves, program
from tests.simulation import report
from tests.simulation.history import Call, Entry, History, StreamEvent, save
from tests.simulation.judge import judge
from tests.simulation.model import route_of
from tests.simulation.work import Work
from tests.support.server import START_S, Server, kill_one
from topics.errors import ExitCode

SHARDS = 3
WAL_FILE_BYTES = 64 << 10  # causes continuous sealing and checkpoints
CALLS_PER_SECOND = 100
CUTS_PER_KILL = 2
OPERATOR = "operator"
SETTLE_S = 60.0
COUNTED = {  # the counted calls, and the member of the response that is counted
    "POST topics/x": ("appends", ""),
    "POST topics/x/diff": ("records read", "records"),
    "POST topics/x/claim": ("jobs", "claimed"),
    "POST topics/x/ack": ("acks", ""),
    "POST topics/x/redrive": ("redrives", ""),
    "PUT routers/x": ("routers", ""),
}
RESET = struct.pack("ii", 1, 0)
T = TypeVar("T")


class CuttableStream(trio.abc.Stream):
    """A connection that can fail on the client's side without any notice to the server, or with a
    reset.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream, self._scope = stream, trio.CancelScope()
        self._is_cut = False

    def cut(self) -> None:
        """Block all traffic from now on."""
        self._is_cut = True
        self._scope.cancel()

    async def _unless_cut(self, act: Callable[[], Awaitable[T]]) -> T:
        with trio.CancelScope() as self._scope:
            if not self._is_cut:
                return await act()
        raise trio.BrokenResourceError("the network is cut")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._unless_cut(partial(self.stream.send_all, data))

    async def wait_send_all_might_not_block(self) -> None:
        await self._unless_cut(self.stream.wait_send_all_might_not_block)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._unless_cut(partial(self.stream.receive_some, max_bytes)))

    async def aclose(self) -> None:
        if not self._is_cut:
            await self.stream.aclose()


class LoadRun:
    """One run. ``faults``: the number of faults by kind."""

    def __init__(self, server: Server, seed: int, seconds: float, kills: int) -> None:
        self._server, self._seconds, self._kills = server, seconds, kills
        self._rng = random.Random(f"{seed}/killer")
        self.history = History(time.monotonic, time.time)
        calls = int(max(2400, CALLS_PER_SECOND * seconds))
        self._work = Work(seed, self._connect, self.history, SHARDS, span_s=seconds, calls=calls)
        self._streams: list[CuttableStream] = []
        self.problems: list[str] = []
        self.faults: Counter[str] = Counter()

    async def run(self) -> None:
        """Run the workload, a clean restart, and the final reading."""
        server = self._server
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inject_fault)
            await self._work.run()
        await trio.to_thread.run_sync(server.wait_ready)
        await self._end("stop", server.stop)
        self.problems += damage(server.data_dir, SHARDS)
        await trio.to_thread.run_sync(server.start)
        self.history.record_server_event("start", EVERYTHING)
        self.history.record_server_event("quiet")
        await self._work.final(SETTLE_S)
        for stream in self._streams:
            stream.stream.socket.close()

    async def _connect(self) -> CuttableStream:
        sock = trio.socket.socket()
        try:
            if len(self._streams) % 5 == 0:  # limits the data in flight to this client
                # Set before the connection is established, because shrinking the window later
                # stalls it for seconds.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            await sock.connect(self._server.address)
        except BaseException:
            sock.close()
            raise
        self._streams.append(CuttableStream(trio.SocketStream(sock)))
        return self._streams[-1]

    async def _inject_fault(self) -> None:
        """Kill processes, sometimes before the previous one has restarted, and cut networks."""
        count = self._kills * (1 + CUTS_PER_KILL)
        for _ in range(count):
            await trio.sleep(self._rng.expovariate(1.0) * self._seconds / (count + 1))
            if self.history.at > self._seconds:
                break
            if self._rng.random() * (1 + CUTS_PER_KILL) < 1:
                await self._kill()
            else:
                self._cut()

    async def _kill(self) -> None:
        roles = await trio.to_thread.run_sync(self._server.roles)
        role = self._rng.choice([*sorted(roles), EVERYTHING, OPERATOR])
        if role == OPERATOR:
            await self._change_directory()
            return
        self.faults[f"killed {role}"] += 1
        if role != EVERYTHING:
            kill_one(roles[role])
            self.history.record_server_event("kill", role)
            return
        await self._end("kill", self._server.kill)
        await trio.to_thread.run_sync(self._server.start)
        self.history.record_server_event("start", EVERYTHING)

    async def _change_directory(self) -> None:
        """Change the directory of a running server as an operator might, and restore it."""
        server, rng = self._server, self._rng
        self.history.record_server_event("fault", EVERYTHING, "directory")
        if rng.random() < 0.3:
            self.faults["deleted LOCK"] += 1
            (server.data_dir / "LOCK").unlink()
            if not await trio.to_thread.run_sync(is_refused, server.data_dir):
                self.problems.append("a second server has started in the directory of the first")
            await self._stop_or_kill()
        else:
            self.faults["replaced directory"] += 1
            elsewhere = server.data_dir.with_name("elsewhere")
            server.data_dir.rename(elsewhere)
            await trio.to_thread.run_sync(copy_tree, elsewhere, server.data_dir)
            before = image(server.data_dir)
            await trio.sleep(rng.choice((0.0, 1.0, 2.0)))
            roles = await trio.to_thread.run_sync(server.roles)
            if rng.random() < 0.5 and (role := rng.choice([*sorted(roles)])):
                kill_one(roles[role])
                self.history.record_server_event("kill", role)
                await trio.sleep(rng.choice((0.0, 1.0, 2.0)))
            await self._stop_or_kill()
            if image(server.data_dir) != before:
                self.problems.append("a directory that replaced the server's own was changed")
            shutil.rmtree(server.data_dir)
            elsewhere.rename(server.data_dir)
        await trio.to_thread.run_sync(server.start)
        self.history.record_server_event("start", EVERYTHING)
        self.history.record_server_event("repaired", EVERYTHING)

    async def _stop_or_kill(self) -> None:
        is_stop = self._rng.random() < 0.5
        await self._end(*(("stop", self._server.stop) if is_stop else ("kill", self._server.kill)))

    async def _end(self, what: str, act: Callable[[], None]) -> None:
        """Stop all processes. The stop is recorded before and after, because it takes time."""
        self.problems += deaths_by_themselves(self._server)
        self.history.record_server_event(what, EVERYTHING)
        await trio.to_thread.run_sync(act)
        self.history.record_server_event(what, EVERYTHING)

    def _cut(self) -> None:
        self._streams = [stream for stream in self._streams if stream.stream.socket.fileno() >= 0]
        if not self._streams:
            return
        stream = self._rng.choice(self._streams)
        stream.cut()
        if self._rng.random() < 0.5:
            stream.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            stream.stream.socket.close()
            what = "reset"
        else:
            what = "cut"
        self.faults[what] += 1
        self.history.record_server_event("cut", how=what)


def is_refused(data_dir: Path) -> bool:
    """Return whether a second server exits on its own and reports the reason."""
    second = Server(data_dir)
    log = second.spawn()
    try:
        return second.wait_exit(START_S) == ExitCode.FAILED and "in use by process" in log.text
    except AssertionError:
        return False
    finally:
        second.kill()


def copy_tree(source: Path, target: Path) -> None:
    """Copy the files that exist. A running server may remove some files during the copy."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path, copy)


def image(data_dir: Path) -> dict[str, bytes]:
    """Return the bytes of all files."""
    found = (path for path in data_dir.rglob("*") if path.is_file())
    return {str(path.relative_to(data_dir)): path.read_bytes() for path in found}


def campaign(data_dir: Path, *, seed: int, seconds: float, kills: int, keep: str = "") -> Summary:
    """Run the campaign. ``keep`` is a file for the history."""
    summary = Summary(seed)
    with Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES) as server:
        load_run = LoadRun(server, seed, seconds, kills)
        trio.run(load_run.run)
        summary.problems += load_run.problems + deaths_by_themselves(server)
    entries = load_run.history.entries
    if keep:
        save(Path(keep), entries)
    found = judge(entries, shards=SHARDS)
    summary.problems += [f"{broken.promise}: {broken.sentence}" for broken in found]
    for line in report.lines(entries, {number for broken in found for number in broken.entries}):
        summary.print_progress(line)
    summary.killed = ", ".join(
        f"{what} {count}x" for what, count in sorted(load_run.faults.items())
    )
    summary.counts = counted(entries)
    return summary


def counted(entries: list[Entry]) -> Counter[str]:
    """Count the calls of clients."""
    counts: Counter[str] = Counter()
    for entry in entries:
        if isinstance(entry, StreamEvent):
            counts[f"events: {entry.event}"] += 1
        elif isinstance(entry, Call):
            counts["calls"] += 1
            counts["calls without a response"] += entry.status is None
            if entry.status in (200, 201):
                what, member = COUNTED.get(route_of(entry).kind, ("others", ""))
                counts[what] += len(entry.answer[member]) if member else 1
    return counts


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, seconds=60.0, kills=20, keep=""))
