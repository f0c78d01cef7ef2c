"""Faults of a world's machine, drawn from its random generator: crashes, power losses, clock
jumps, disk faults.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

import trio

from tests.simulation import threads
from tests.simulation.disk import PROCEED, SYNCS, WRITES, Owner, Verdict
from tests.simulation.owners import Process
from tests.simulation.world import SHARDS, World

KINDS: Final = (
    *("kill shard", "kill shard", "kill front", "kill everything", "power", "power", "stop"),
    *("clock", "slow", "hang", "failing sync", "failing write", "full", "late", "rotate"),
    *("dies", "dies", "dies", "dies", "damage", "damage", "damage", "power during operation"),
    *("replace directory", "replace directory"),
)
OPERATION_S: Final = 0.0001  # the approximate time of a disk operation
UP_MAX_S: Final = 120.0
KEY_S: Final = 60.0  # an added or removed key takes effect by then


@dataclass
class Fault:
    """The disk faults of a process."""

    kind: str
    until: float


class Faults:
    """The faults of one world. Each run has only some kinds, at its own rate."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.rng
        share = self._rng.choice((0.15, 0.4, 0.8))
        some = {kind for kind in dict.fromkeys(KINDS) if self._rng.random() < share}
        some -= {"power", "power during operation"} if self._rng.random() < 0.4 else set()
        self._kinds = [kind for kind in KINDS if kind in some]
        self._mean_s = self._rng.choice((60.0, 150.0, 400.0, 1200.0))
        self._faults: dict[str, Fault] = {}
        self._is_rotating = False
        self._operations, self._is_operating = 0, trio.Event()
        self.is_calm = self._rng.random() < 0.1
        self._world.disk.hook = self._before

    async def run(self) -> None:
        """Cause faults sequentially until cancelled."""
        while not self.is_calm and self._kinds:
            await trio.sleep(self._rng.expovariate(1 / self._mean_s))
            with trio.CancelScope(shield=True):  # restart the stopped processes even when cancelled
                await self._apply(self._rng.choice(self._kinds))

    async def end_all(self) -> None:
        """Stop all faults, and wait until the server is ready. A shard with a broken log must be
        restarted.
        """
        world = self._world
        self._faults.clear()
        world.disk.free_bytes, world.late, self.is_calm = None, 0.0, True
        for process in world.processes.values():
            process.dies_in = 0
        world.history.record_server_event("repaired", "everything")
        await trio.sleep(UP_MAX_S)
        await world.ready()
        end = self._rng.choice(("", "stop", "kill everything", "power"))
        if not end and not world.accepts_writes:
            end = "stop"
        if end:
            await self._apply(end)

    async def _apply(self, kind: str) -> None:
        world, rng = self._world, self._rng
        process = rng.choice([*world.processes.values()] or [None])
        until = trio.current_time() + rng.choice((1.0, 10.0, 60.0))
        if kind in ("kill everything", "power", "stop"):
            await self._restart(kind)
        elif kind == "damage":
            await self._damage()
        elif kind == "replace directory":
            await self._replace_directory()
        elif kind == "power during operation":
            await self._lose_power_during_operation()
        elif kind == "rotate":
            world.nursery.start_soon(self._rotate)
        elif process is None or process.is_dead:
            return
        elif kind == "kill shard" and process.name.startswith("shard"):
            world.kill(process)
        elif kind == "kill front" and "front 0" in world.processes:
            world.kill(world.processes["front 0"])
        elif kind == "dies" and process.name.startswith("shard"):
            process.dies_in = 1 + int(rng.random() ** 3 * 300)
        elif kind == "clock":
            seconds = rng.choice((-3600.0, -30.0, -0.5, 0.5, 30.0, 3600.0)) * rng.random()
            world.time.wall_ahead_s += seconds
            world.history.record_server_event("clock", value=seconds)
        elif kind == "late":
            world.late = rng.choice((0.0, 0.0, 0.01, 0.1))
        elif kind == "full":
            world.disk.free_bytes = rng.choice((0, 1 << 16, 1 << 20))
            world.history.record_server_event("fault", "everything", kind)
            world.nursery.start_soon(self._free_space, until)
        elif process.name.startswith("shard"):
            self._faults[process.name] = Fault(kind, until)
            world.history.record_server_event("fault", process.name, kind)

    async def _rotate(self) -> None:
        """Add a new key, and remove the old one later."""
        world = self._world
        if not world.keys or self._is_rotating:
            return
        self._is_rotating, new = True, f"key{len(world.removed_keys) + 1}"
        world.set_keys(*world.keys, new)
        await trio.sleep(KEY_S * (1 + self._rng.random()))
        world.set_keys(new)
        await trio.sleep(KEY_S)
        self._is_rotating = False

    async def _restart(self, kind: str) -> None:
        world = self._world
        if kind == "power":
            await world.lose_power()
        elif kind == "stop":
            await world.stop()
        else:
            await world.kill_everything()
        self._faults.clear()
        await trio.sleep(self._rng.choice((0.0, 1.0, 100.0)))
        await self._start()

    async def _start(self) -> None:
        self._world.start()
        self._world.history.record_server_event("start", "everything")
        await self._world.ready()

    async def _lose_power_during_operation(self) -> None:
        """Lose power during some disk operation or shortly after it. Usually no operation is in
        progress.
        """
        self._operations, self._is_operating = 1 + int(self._rng.random() ** 3 * 300), trio.Event()
        with trio.move_on_after(UP_MAX_S):
            await self._is_operating.wait()
            await trio.sleep(OPERATION_S * self._rng.expovariate(1.0))
        await self._restart("power")

    async def _damage(self) -> None:
        """Damage files of a shard while all processes are stopped. A refused start must not change
        anything; then the files are restored. Damage that no start detects is also undone.
        """
        world, rng, part = self._world, self._rng, f"/{self._rng.randrange(SHARDS):02d}/"
        await (world.stop() if rng.random() < 0.5 else world.kill_everything())
        self._faults.clear()
        world.disk.free_bytes = None
        intact = world.disk.image(part)
        how, corrupt = self._corrupt(intact), world.disk.image(part)
        shard = int(part.strip("/"))
        if await world.is_refused(shard):
            world.history.record_server_event("corrupt", f"shard {shard}", how)
            if rng.random() < 0.5:  # the other shards serve in the meantime
                await self._start()
                await trio.sleep(rng.choice((0.0, 1.0, 100.0)))
                await world.stop()
            if world.disk.image(part) != corrupt:
                world.broken.append(f"a refused start of shard {shard} has changed files: {how}")
        world.disk.restore(intact, part)
        await self._start()

    async def _replace_directory(self) -> None:
        """Rename the data directory of the running server, and put another one in its place, as a
        restored backup would be. The other directory never changes. Later all processes stop, and
        the server's own directory is restored.
        """
        world, rng = self._world, self._rng
        data, elsewhere = world.root / "data", world.root / "elsewhere"
        world.disk.free_bytes = None
        world.history.record_server_event("fault", "everything", "moved")
        data.rename(elsewhere)
        image = world.disk.put_copy("elsewhere", "data")
        await trio.sleep(rng.choice((0.0, 0.0, 1.0, 100.0)))
        if rng.random() < 0.3:
            for name in [*world.processes]:
                world.kill(world.processes[name])
            await trio.sleep(rng.choice((1.0, 100.0)))
        await (world.stop() if rng.random() < 0.7 else world.kill_everything())
        self._faults.clear()
        if world.disk.image("data/") != image:
            world.broken.append("a server has changed a directory that took the place of its own")
        world.disk.remove_tree("data")
        elsewhere.rename(data)
        world.disk.sync_folder("")
        world.history.record_server_event("repaired", "everything")
        await self._start()

    def _corrupt(self, files: dict[str, bytes]) -> str:
        """Flip bits of some files, truncate them, or make a page unreadable. Return what was
        done.
        """
        world, rng, changes = self._world, self._rng, list[str]()
        checkpoints = [path for path in files if path.endswith(".ckpt")]
        some = rng.choices([*files], k=rng.choice((1, 1, 2, 3)))
        for path in dict.fromkeys(some + checkpoints * (rng.random() < 0.4)):
            used = len(files[path].rstrip(b"\0"))
            kind, at = rng.choice(("flip", "flip", "cut", "unreadable")), rng.randrange(used or 1)
            changes.append(f"{kind} {path} at {at}")
            if kind == "unreadable":
                world.disk.make_unreadable(world.root / path, at, 1)
                continue
            with (world.root / path).open("r+b") as file:
                if kind == "cut":
                    file.truncate(at)
                elif used:
                    file.seek(at)
                    file.write(bytes([files[path][at] ^ 1 << rng.randrange(8)]))
        return ", ".join(changes)

    async def _free_space(self, until: float) -> None:
        await trio.sleep_until(until)
        self._world.disk.free_bytes = None
        self._world.history.record_server_event("repaired", "everything")

    def _before(self, owner: Owner | None, operation: str, path: str, length: int) -> Verdict:
        """Choose the outcome of a disk operation."""
        if not isinstance(owner, Process):
            return PROCEED
        world, rng = self._world, self._rng
        self._operations -= 1
        if not self._operations:
            self._is_operating.set()
        if owner.dies_in:
            owner.dies_in -= 1
            if not owner.dies_in:
                torn = rng.randrange(length + 1) if length else None
                world.kill(owner)
                return Verdict(torn=torn)
        fault = self._faults.get(owner.name)
        if fault is not None and trio.current_time() > fault.until:
            del self._faults[owner.name]
            world.history.record_server_event("repaired", owner.name)
            fault = None
        pause_s = OPERATION_S * rng.expovariate(1.0)
        if fault is not None:
            if fault.kind == "slow":
                pause_s *= 1000 * rng.random()
            elif fault.kind == "hang":
                pause_s = max(pause_s, fault.until - trio.current_time())
            elif (fault.kind == "failing sync" and operation in SYNCS) or (
                fault.kind == "failing write" and operation in WRITES
            ):
                del self._faults[owner.name]
                world.nursery.start_soon(self._replace, owner)
                return Verdict(error=errno.EIO)
        threads.sleep(pause_s)
        return PROCEED

    async def _replace(self, process: Process) -> None:
        """Act as an operator that finds a broken log, and kill the process."""
        await trio.sleep(self._rng.expovariate(1 / 30))
        self._world.kill(process)
