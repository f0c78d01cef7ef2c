"""The world of one seed: a machine with a disk, the server on it, its clients, and the faults."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import trio
from werkzeug.routing import Rule

from tests.simulation import outside, threads
from tests.simulation.disk import Died, Disk
from tests.simulation.history import History
from tests.simulation.owners import Process, current, enter, leave
from tests.simulation.work import tenant_of
from topics.actors.link import event_loop, link
from topics.actors.link.board import Board, FrontState, ShardState
from topics.actors.link.link_memory import LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.config import Settings
from topics.errors import ExitCode
from topics.front import server
from topics.front.data import backup_stream
from topics.process import family, front, shard_writer, supervisor
from topics.process.family import ChildMains, Links, Shared
from topics.process.keys import KeyFile, KeyReload, KeySources
from topics.process.notify import Notifier
from topics.storage.data_dir import DataDirectory
from topics.storage.folders import Folders
from topics.storage.wal import log as wal_log

SHARDS: Final = 3
STARTED_S: Final = 60.0
SETTLED: Final = ("READY", "READ_ONLY", "NO_ROOM", "DAMAGED", "DIRECTORY_LOST")
TENANT: Final = "d|D|q"  # names of dead-letter topics and of some queues


class EventLoop(event_loop.EventLoop):
    """Serves the descriptors of all processes, each in the context of its process. It sometimes
    delivers events late.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self._events: dict[int, int] = {}  # the watched events of each descriptor

    def current_time(self) -> float:
        return self.world.time.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Serve ready descriptors. If there are none, advance the clock to the next deadline."""
        time = self.world.time
        if deadline > time.now and not self._epoll.poll(0, 1):
            assert deadline < math.inf, "no task can continue"
            time.now = deadline
            self._has_polled = True
            return 0.0
        return super().deadline_to_sleep_time(-math.inf)

    def watch(self, fd: int, events: int, ready: event_loop.Ready) -> None:
        process = current()
        if process is not None:
            ready = partial(self._serve_process, process, fd, ready)
        super().watch(fd, events, ready)
        self._events[fd] = events

    def change(self, fd: int, events: int) -> None:
        super().change(fd, events)
        self._events[fd] = events

    def _serve_process(
        self, process: Process, fd: int, ready: event_loop.Ready, which: int
    ) -> None:
        if process.is_dead:
            self._epoll.modify(fd, 0)
            return
        world = self.world
        if world.late and world.rng.random() < world.late:
            self._epoll.modify(fd, 0)
            world.nursery.start_soon(self._serve_late, fd, world.rng.random() ** 4)
            return
        token = enter(process)
        try:
            ready(which)
        except Died:
            self.world.clean_up(process)
        finally:
            leave(token)

    async def _serve_late(self, fd: int, pause_s: float) -> None:
        await trio.sleep(pause_s)
        with contextlib.suppress(OSError):  # the wait has been cancelled in the meantime
            self._epoll.modify(fd, self._events.get(fd, 0))


class World:
    """One machine and its processes."""

    def __init__(self, seed: int, root: Path, time: outside.Time) -> None:
        self.seed, self.time = seed, time
        self.rng = random.Random(f"world {seed}")
        self.disk = Disk(root, random.Random(f"disk {seed}"))
        self.disk.owner = current
        self.history = History(time.current, lambda: time.now + time.wall_ahead_s)
        self.root = root
        self.boots = 1
        self.log: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self.late = 0.0  # the share of events that processes receive late
        self.address = "\0" + str(root)
        # keys of the key file, the newest last; empty: no key is required
        self.keys: list[str] = []
        self.removed_keys: list[str] = []
        self.old_keys = 0.02  # the share of calls with a removed key
        self.key_file = KeyFile(root.with_name(f"{root.name} keys"), "TOPICS_API_KEYS_FILE")
        self.processes: dict[str, Process] = {}
        self.board: Board | None = None
        self._pids = 100
        self._supervisor: threads.Thread[Any] | None = None
        self._signals: list[signal.Signals] = []
        self._signalled = threads.Signal()
        self._scopes: dict[int, trio.CancelScope] = {}
        self.nursery: trio.Nursery

    # --- the server

    def start(self) -> None:
        """Start the server as the command ``serve`` does."""
        settings = self.settings = Settings(
            data_dir=self.root / "data",
            shards=SHARDS,
            wal_file_bytes=1 << 18,
            ring_bytes=1 << 16,
            inline_bytes=1 << 13,
            arena_bytes=1 << 22,
        )
        self._signals.clear()
        self.board = None
        self._supervisor = threads.Thread(target=partial(self._serve, settings))
        self._supervisor.start()

    def _serve(self, settings: Settings) -> Any:
        self.directory = DataDirectory(settings.data_dir, shards=settings.shards)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.board = board = Board(settings.shards)
        board.started_monotonic_ms = int(self.time.monotonic() * 1000)
        sources = KeySources(files=(self.key_file,) if self.keys else ())
        keys = KeyReload(board, sources, sources.read_again())
        links = Links(board, LinkSizes.of(settings))
        self.shared = shared = Shared(board, links, listener, Notifier(), keys.table)
        try:
            listener.bind(self.address)
            listener.listen(1000)
            workers = ChildMains(lambda: None, lambda _: None)
            self.supervisor = supervisor.Supervisor(settings, shared, workers, keys)
            return self.supervisor.run()
        finally:
            listener.close()
            for memory in links:
                memory.close()
            self.directory.close()

    def fork(self, name: str, _main: Callable[[], None], *, log_level: str = "") -> int:
        """Start a child process."""
        self._pids += 1
        process = Process(name, self._pids)
        self.processes[name] = process
        scope = self._scopes[process.pid] = trio.CancelScope()
        token = enter(process)
        try:
            self.nursery.start_soon(self._live, process, scope)
        finally:
            leave(token)
        return process.pid

    async def _live(self, process: Process, scope: trio.CancelScope) -> None:
        status = 0
        try:
            with scope:
                await self._main(process)
        except SystemExit as leaving:
            status = (leaving.code if isinstance(leaving.code, int) else 1) << 8
        except BaseException as error:
            if not _is_death(error):
                process.failure = error
        if process.is_dead:
            status = signal.SIGKILL
        if process.failure is not None:
            status = 1 << 8
            self.broken.append(f"{process.name} failed: {_text_of(process.failure)}")
        process.is_dead = True
        for thread in [*process.threads]:
            thread.kill()
        self._close_files_of(process)
        del self._scopes[process.pid]
        process.wait_status = status
        process.ended.set()
        self.signal_supervisor(signal.SIGCHLD)

    async def _main(self, process: Process) -> None:
        settings, shared = self.settings, self.shared
        if process.name == str(FRONT):
            own = [Link(memory, shared.board, FRONT) for memory in shared.links.of(FRONT)]
            await front._serve(
                settings, shared.keys, Listener(process, shared.listener), shared.board, own
            )
            shared.board.front.state = FrontState.DOWN
            return
        index = int(process.name.removeprefix("shard "))
        cells = shared.board.shard(index)
        cells.progress_ppm = 0
        cells.state = ShardState.RECOVERING
        folders = self.directory.folders[index]
        shard = await threads.run_sync(shard_writer._recover, settings, folders, cells, index)
        shard.engine.table.next_lease_number = 1 + self.rng.getrandbits(60)
        await shard_writer._serve(
            settings, shared.board, shared.links.of(shard_id(index)), index, shard
        )
        cells.state = ShardState.STOPPED

    def _close_files_of(self, process: Process) -> None:
        for sock in process.sockets:
            sock.close()
        for fd in process.eventfds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.disk.close_all_of(process)

    # --- system calls of the supervisor

    def waitpid(self, pid: int, _options: int) -> tuple[int, int]:
        """Replace ``os.waitpid``."""
        for process in [*self.processes.values()]:
            if process.wait_status is not None and pid in (-1, process.pid):
                del self.processes[process.name]
                return process.pid, process.wait_status
        return 0, 0

    def send_signal(self, pid: int, number: int) -> None:
        """Replace ``os.kill``."""
        for process in [*self.processes.values()]:
            if process.pid == pid:
                if number == signal.SIGKILL:
                    self.kill(process)
                elif process.on_sigterm is not None:
                    process.on_sigterm()
                else:
                    self.kill(process)

    def wait_for_signal(self, _numbers: Any, seconds: float) -> signal.Signals | None:
        """Replace the function of `topics.process.children`."""
        threads.wait_until(lambda: bool(self._signals), self._signalled, seconds)
        return self._signals.pop(0) if self._signals else None

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        self._signals.append(number)
        self._signalled.notify()

    # --- keys

    def set_keys(self, *keys: str) -> None:
        """Write these keys to the key file, and signal the server."""
        added = [key for key in keys if key not in self.keys]
        removed = [key for key in self.keys if key not in keys]
        for how, some_keys in (("added", added), ("removed", removed)):
            for key in some_keys:
                self.history.record_server_event("key", key, how)
                self.history.record_server_event("key", tenant_of(key), how)
        self.removed_keys += removed
        self.keys = [*keys]
        path = self.key_file.path
        new = path.with_suffix(".new")
        tenants = [f"{tenant_of(key)}::{TENANT}" for key in keys]
        new.write_text("\n".join((*keys, *tenants)))
        new.replace(path)  # another inode, because its timestamps are not those of this world
        self.signal_supervisor(signal.SIGHUP)

    def key(self) -> str:
        """Return the key of a client: the oldest valid one, sometimes a removed one."""
        if self.removed_keys and self.rng.random() < self.old_keys:
            return self.rng.choice(self.removed_keys)
        return self.keys[0]

    # --- crashes

    def kill(self, process: Process) -> None:
        """Send SIGKILL: from now on the process does nothing."""
        if not process.is_dead:
            self.history.record_server_event("kill", process.name)
            self.clean_up(process)

    def clean_up(self, process: Process) -> None:
        """Clean up after a dead process."""
        process.is_dead = True
        for thread in [*process.threads]:
            thread.kill()
        if process.pid in self._scopes:
            self._scopes[process.pid].cancel()

    async def lose_power(self) -> None:
        """Kill all processes, and lose the pending writes of the disk."""
        self.history.record_server_event("power", "everything")
        await self._end_everything()
        self.boots += 1
        how = self.disk.lose_power()
        self.history.record_server_event("lost", "everything", how)

    async def kill_everything(self) -> None:
        """Send SIGKILL to all processes, including the supervisor."""
        self.history.record_server_event("kill", "everything")
        await self._end_everything()

    async def _end_everything(self) -> None:
        assert self._supervisor is not None
        processes = [*self.processes.values()]
        for process in processes:
            process.is_dead = True
        self._supervisor.kill()
        for process in processes:
            self.clean_up(process)
        for process in processes:
            await process.ended.wait()
        self.processes.clear()

    async def stop(self) -> None:
        """Send SIGTERM, and wait until all processes have ended."""
        assert self._supervisor is not None
        self.signal_supervisor(signal.SIGTERM)
        with trio.fail_after(STARTED_S):
            await self._supervisor.ended.wait()
        self.history.record_server_event("stop", "everything")

    async def is_refused(self, shard: int) -> bool:
        """While all processes are stopped, start one shard and kill it before it serves. Return
        whether it has found its data damaged.
        """
        assert self.board is not None
        self._pids += 1
        process = Process(f"shard {shard}", self._pids)
        cells, token = self.board.shard(shard), enter(process)
        try:
            folders = Folders.under(self.settings.data_dir, shard)
            start = partial(shard_writer._recover, self.settings, folders, cells, shard)
            thread: threads.Thread[Any] = threads.Thread(target=start)
            thread.ends_process = False
            thread.start()
        finally:
            leave(token)
        await thread.ended.wait()
        process.is_dead = True
        for each in [*process.threads]:
            each.kill()
        self._close_files_of(process)
        error = getattr(thread.result, "error", None)
        if error is not None and not isinstance(error, SystemExit):
            self.broken.append(f"a start of {process.name} failed: {_text_of(error)}")
        return isinstance(error, SystemExit) and error.code == ExitCode.DAMAGED

    async def ready(self) -> None:
        """Wait until the front serves and each shard serves or is damaged."""
        with trio.fail_after(STARTED_S):
            while not self.is_ready():  # noqa: ASYNC110 - cells of the board, which set no event
                await trio.sleep(0.05)

    @property
    def accepts_writes(self) -> bool:
        """Return whether all shards accept writes."""
        board = self.board
        return board is not None and all(
            board.shard(index).state == ShardState.READY for index in range(SHARDS)
        )

    def is_ready(self) -> bool:
        board = self.board
        return (
            board is not None
            and board.front.state == FrontState.SERVING
            and all(board.shard(index).state.name in SETTLED for index in range(SHARDS))
        )

    # --- clients

    async def connect(self) -> trio.SocketStream:
        """Open a client's connection."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            sock.connect(self.address)
            await trio.lowlevel.checkpoint()
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


class Listener(socket.socket):
    """The front's listener. Connections that it accepts are closed when the front dies."""

    def __init__(self, process: Process, shared: socket.socket) -> None:
        super().__init__(fileno=os.dup(shared.fileno()))
        self._process = process
        process.sockets.append(self)

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        self._process.sockets.append(accepted)
        return accepted, address


class Link(link.Link):
    """A link that sends nothing after its process has died."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._process = current()

    def flush(self) -> None:
        if self._process is None or not self._process.is_dead:
            super().flush()


def _is_death(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_death(each) for each in error.exceptions)
    return isinstance(error, (Died, trio.Cancelled, GeneratorExit))


def _text_of(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))[-6000:]


class IdleGuard:
    """Replaces `link.LinkTimer`, because no wake-up is lost here."""

    def __init__(self) -> None:
        self.links: set[Any] = set()

    def schedule_check(self) -> None:
        """Flush the links of each process, as its loop does."""


class Kernel:
    """A module with some functions replaced."""

    def __init__(self, module: ModuleType, **own: Any) -> None:
        self._module, self._own = module, own

    def __getattr__(self, name: str) -> Any:
        own = self._own
        return own[name] if name in own else getattr(self._module, name)


def install_world(world: World) -> None:
    """Replace the server's interfaces to the operating system with the simulated world."""
    for module in [*sys.modules.values()]:
        name = getattr(module, "__name__", "")
        if not name.startswith("topics."):
            continue
        space = vars(module)
        if "threading" in space:
            space["threading"] = Kernel(
                _real("threading"), Thread=threads.Thread, Lock=threads.Lock, Event=threads.Event
            )
        if "queue" in space and name.startswith("topics.storage"):
            space["queue"] = Kernel(_real("queue"), SimpleQueue=threads.SimpleQueue)
        if "on_sigterm" in space:
            space["on_sigterm"] = _on_sigterm
        if "boot_id" in space:
            space["boot_id"] = lambda: f"boot {world.boots}"
    outside.slow_down()
    nothing = lambda *_: None  # noqa: E731
    signals = Kernel(signal, signal=nothing, pthread_sigmask=nothing)
    for owner, name, own in (
        (Rule, "_compile_builder", lambda *_: nothing),  # no URL is ever built
        (server, "Timings", partial(vars(server)["Timings"], tick_s=20.0)),
        (wal_log, "select", Kernel(select, poll=threads.Poll)),
        (os, "eventfd", _eventfd),
        (event_loop.EventLoop, "of_this_run", trio.lowlevel.current_clock),
        (trio.to_thread, "run_sync", threads.run_sync),
        (family, "fork", world.fork),
        (family, "os", Kernel(os, waitpid=world.waitpid, kill=world.send_signal)),
        (supervisor, "wait_for_signal", world.wait_for_signal),
        (supervisor, "signal", signals),
        (backup_stream, "reading", threads.reading),
        (front, "Link", Link),
        (shard_writer, "Link", Link),
        (shard_writer, "time", Kernel(time, sleep=threads.sleep)),
    ):
        setattr(owner, name, own)


def _real(name: str) -> ModuleType:
    return sys.modules[name]


_real_eventfd = os.eventfd


def _eventfd(*args: int) -> int:
    fd = _real_eventfd(*args)
    if (process := current()) is not None:
        process.eventfds.append(fd)
    return fd


def _on_sigterm(act: Callable[[], object]) -> None:
    process = current()
    assert process is not None
    process.on_sigterm = act


def run(world: World, main: Callable[[], Awaitable[None]]) -> None:
    """Run ``main`` alongside its background tasks in the world."""
    loop = EventLoop(world)

    async def everything() -> None:
        link._TIMER.set(IdleGuard())  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            world.nursery = threads.Thread.nursery = nursery
            with world.disk:
                await main()
            nursery.cancel_scope.cancel()

    trio.run(everything, clock=loop, instruments=[loop])
