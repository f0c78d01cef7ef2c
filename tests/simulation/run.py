"""One seed: its world, from the first start to the verdict.

Time and randomness are replaced for the complete process, so each seed runs in a separate process,
which is a fork of a process that has imported all modules. The result does not depend on hash seeds
or memory addresses.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.simulation import outside

_NOW: Final = outside.install(0)  # before any module imports functions of `time` by name

import structlog  # noqa: E402
import trio  # noqa: E402

import topics.front.admin.application  # noqa: E402, F401 - nothing is imported while a world runs
from tests.campaigns.killer import damage  # noqa: E402
from tests.simulation.faults import Faults  # noqa: E402
from tests.simulation.history import Call, Entry, ServerEvent  # noqa: E402
from tests.simulation.judge import judge  # noqa: E402
from tests.simulation.restored import readings  # noqa: E402
from tests.simulation.threads import run_sync  # noqa: E402
from tests.simulation.work import HOUR_S, Work  # noqa: E402
from tests.simulation.world import SHARDS, World, install_world  # noqa: E402
from tests.simulation.world import run as run_world  # noqa: E402

CALLS: Final = (600, 1200, 2400)  # the approximate number of calls in a run
BACKUPS_EVERY: Final = 5  # a client takes backups if the seed is a multiple of this
KEYED: Final = 0.5  # the share of runs whose server requires keys


@dataclass
class Result:
    """The result of a seed. ``digest`` is a hash of all bytes on its disk."""

    seed: int
    broken: list[str] = field(default_factory=list)
    concerned: list[int] = field(default_factory=list)  # numbers of entries of the history
    entries: list[Entry] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    digest: str = ""
    simulated_s: float = 0.0
    cpu_s: float = 0.0


def run(seed: int, *, span_s: float = HOUR_S, cut_s: float | None = None) -> Result:
    """Run a seed completely. With ``cut_s`` all activity stops after this number of simulated
    seconds.
    """
    began, result = time.process_time(), Result(seed)
    with _folder() as root:
        world = World(seed, root, outside.install(seed))
        _log_to(world, result.log)
        install_world(world)
        try:
            run_world(world, lambda: _live(world, span_s, cut_s))
            result.digest = world.disk.digest()
            happened = {one.what for one in world.history.entries if isinstance(one, ServerEvent)}
            if not happened & {"corrupt", "damaged"}:
                world.broken += damage(root / "data", SHARDS)
        except BaseException as error:
            world.broken.append(f"the world has ended: {text_of(error)}")
        finally:
            world.key_file.path.unlink(missing_ok=True)
    world.history.entries.sort(key=lambda one: one.began if isinstance(one, Call) else one.number)
    result.entries, result.simulated_s = world.history.entries, world.history.at
    result.broken += world.broken
    if not result.broken:
        for broken in judge(result.entries, shards=SHARDS):
            result.broken.append(f"{broken.promise}: {broken.sentence}")
            result.concerned += broken.entries
    result.cpu_s = time.process_time() - began
    return result


async def _live(world: World, span_s: float, cut_s: float | None) -> None:
    has_keys = world.rng.random() < KEYED
    if has_keys:
        world.set_keys("key0")
    world.start()
    await world.ready()
    faults = Faults(world)
    calls = world.rng.choice(CALLS)
    work = Work(
        *(world.seed, world.connect, world.history, SHARDS),
        span_s=span_s,
        calls=calls,
        token=world.key if has_keys else None,
        takes_backups=world.seed % BACKUPS_EVERY == 0,
        set_late=partial(setattr, world, "late"),
    )
    with trio.move_on_after(span_s if cut_s is None else cut_s):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(faults.run)
            await work.run()
            nursery.cancel_scope.cancel()
    await faults.end_all()
    world.old_keys = 0.0
    world.history.record_server_event("quiet")
    await work.final()
    await world.stop()
    await _restore(world, work)


async def _restore(world: World, work: Work) -> None:
    """Restore all backups, and add their records to the history. The run has ended before."""
    for call, data in work.backups:
        folder = world.root.with_name(f"{world.root.name} restored")
        try:
            world.history.entries += await run_sync(readings, call, data, folder, SHARDS)
        except Exception as error:
            world.broken.append(f"the backup of {call.at} s cannot be restored: {text_of(error)}")


@contextmanager
def _folder() -> Iterator[Path]:
    """Create the folder in memory. `os.getpid` returns the same value in every run."""
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() else Path(tempfile.gettempdir())
    root = folder / f"topics simulation {Path('/proc/self').readlink()}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _log_to(world: World, lines: list[dict[str, Any]]) -> None:
    def note(_logger: Any, _method: str, event: Any) -> Any:
        lines.append({"at": world.history.at} | event)
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.format_exc_info, note])


def text_of(error: BaseException) -> str:
    """Format an exception for people."""
    import traceback

    return "".join(traceback.format_exception(error))[-6000:]


def deaths(entries: list[Entry]) -> int:
    """Count the crashes by process."""
    return sum(isinstance(each, ServerEvent) and each.what in ("kill", "power") for each in entries)
