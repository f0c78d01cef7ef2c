"""The load that is recorded for a power loss: all four classes, with sealing, checkpoints, deletes,
evictions and recreation, queues (`power_queues`) and routers (`power_routers`).

Runs as a program inside the recorded file system (`power_loss`). Each line of its notes is one step
as JSON: what was asked, when it was sent and when it was acknowledged (CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.campaigns.power_queues import QUEUE_CLASSES, QueueLoad
from tests.campaigns.power_routers import ROUTER_SHARDS, RouterLoad
from tests.support.api import Api
from tests.support.server import Server

CLASSES = ("fsync", "disk", "memory", "ephemeral")
WAL_FILE_BYTES = 64 << 10
# States are judged long after they were made: no key may have grown too old by then.
WINDOW_MS = 24 * 3600 * 1000
STREAMED_MIN_BYTES = (4 << 20) + 1  # so long a body is written beside the log (decision 0007)
LONG_SHARE = 0.015
TAGS = ("a", "a:1", "b", None)
MATCHES = ("a", "b", ["tag", "Glob", "a*"], ["tag", "Eq", "a:1"])


class Mix(NamedTuple):
    """Of what kind the steps are: the class of each is one of these, and such a share of them
    deletes records; ``queue_share`` of them is work of queues, ``router_share`` of routers, which
    take two shards.

    ``sync_ms``: how long what nobody waits for is in the kernel's hands alone.
    """

    classes: tuple[str, ...] = ("fsync", "fsync", "disk", "memory", "ephemeral")
    delete_share: float = 0.1
    queue_share: float = 0.35
    router_share: float = 0.0
    sync_ms: int = 40

    @property
    def asked(self) -> dict[str, float | str]:
        """As options of a program. A class that stands there twice comes twice as often."""
        return self._asdict() | {"classes": ",".join(self.classes)}

    @property
    def options(self) -> list[str]:
        """For a command line."""
        pairs = self.asked.items()
        return [part for n, value in pairs for part in (f"--{n.replace('_', '-')}", str(value))]


def mix_of(asked: dict[str, Any]) -> Mix:
    """What was asked for."""
    return Mix(**asked | {"classes": tuple(asked["classes"].split(","))})


def records_of(
    dice: random.Random,
    number: int,
    counts: Sequence[int],
    sizes: Sequence[int],
    tags: Sequence[str | None],
) -> list[dict[str, Any]]:
    """The records of append ``number``; some have a tag."""
    records = []
    for position in range(dice.choice(counts)):
        data = [number, position, "x" * dice.choice(sizes)]
        tag = dice.choice(tags)
        records.append({"data": data} | ({} if tag is None else {"tag": tag}))
    return records


class Load:
    """Sends one step after the other and notes each, whatever becomes of it."""

    def __init__(self, api: Api, notes: IO[str], dice: random.Random) -> None:
        self.api, self._notes, self._dice = api, notes, dice
        self._number = 0
        self._heads: dict[str, int] = {}
        self.queues = QueueLoad(self._do, self._note, dice)
        self.routers = RouterLoad(self._do, self._note, records_of, dice)

    def put(self, topic: str, **config: Any) -> None:
        self._do("put", topic, "PUT", "", config, config=config)

    def append(self, topic: str, *, long: bool = False) -> None:
        """``long``: with so much white space that it is a long write."""
        self._number += 1
        records = records_of(self._dice, self._number, (1, 1, 3), (10, 300, 2500, 8000), TAGS)
        key = f"k{self._number}"
        raw = json.dumps({"records": records, "idempotency_key": key}).encode()
        sent = raw.ljust(STREAMED_MIN_BYTES) if long else raw
        body = self._do("append", topic, "POST", "", sent, records=records, key=key)
        self._heads[topic] = body["head_seq"]

    def delete(self, topic: str) -> None:
        fields: dict[str, Any] = {}
        if self._dice.random() < 0.6:
            fields["match"] = self._dice.choice(MATCHES)
        if not fields or self._dice.random() < 0.3:
            fields["before_seq"] = max(0, self._heads.get(topic, 0) - self._dice.randint(0, 40))
        self._do("delete", topic, "POST", "/delete", fields, body=fields)

    def clear(self) -> None:
        """Leave little in any topic, so that whole segments go."""
        for topic, head in self._heads.items():
            body = {"before_seq": head - 1}
            self._do("delete", topic, "POST", "/delete", body, body=body)

    def remove(self, topic: str) -> None:
        self._do("remove", topic, "DELETE", "", None)
        self._heads.pop(topic, None)

    def make_again(self, durability: str) -> None:
        self.remove(f"{durability}.again")
        self.put(f"{durability}.again", durability=durability, idempotency_window_ms=WINDOW_MS)

    def _do(
        self,
        step: str,
        topic: str,
        method: str,
        tail: str,
        sent: Any,
        *,
        answered: Callable[[Any], dict[str, Any]] | None = None,
        **noted: Any,
    ) -> Any:
        """Send a step and note it; ``answered``: what its answer adds to the note."""
        began = time.monotonic_ns()
        answer = self.api.call(method, f"/v0/topics/{topic}{tail}", sent)
        ended = time.monotonic_ns()
        assert answer.status in (200, 201), str(answer)
        body = answer.json()
        note = {"step": step, "topic": topic, "sent": began, "acknowledged": ended, **noted}
        if "first_seq" in body:
            note["first_seq"] = body["first_seq"]
        self._note(note | (answered(body) if answered is not None else {}))
        return body

    def _note(self, note: dict[str, Any]) -> None:
        self._notes.write(json.dumps(note) + "\n")


def run(data_dir: Path, notes: IO[str], *, seed: int, steps: int, mix: Mix) -> None:
    """Three lives of a server, the first ended in order, the others by a kill: what each leaves is
    where the next begins.
    """
    dice = random.Random(seed)
    shards = ROUTER_SHARDS if mix.router_share else 1
    server = Server(data_dir, shards=shards, wal_file_bytes=WAL_FILE_BYTES, wal_sync_ms=mix.sync_ms)
    load: Load | None = None
    with server:
        for end in (server.stop, server.kill, server.kill):
            if not server.running:
                server.start()
            with Api(server.address) as api:
                if load is None:
                    load = Load(api, notes, dice)
                    _make(load, mix)
                load.api = api
                load.queues.restarted()
                _work(load, dice, steps // 6, mix)
                if mix.delete_share and end == server.kill:
                    load.clear()
                    for durability in CLASSES:
                        load.make_again(durability)
                _work(load, dice, steps // 6, mix)
                if mix.router_share:
                    load.routers.settle(api)
            end()


def _make(load: Load, mix: Mix) -> None:
    for durability in CLASSES:
        config = {"durability": durability, "idempotency_window_ms": WINDOW_MS}
        load.put(f"{durability}.log", **config)
        load.put(f"{durability}.capped", **config, cap_records=25)
        load.put(f"{durability}.again", **config)
    load.put("changing", durability="disk", idempotency_window_ms=WINDOW_MS)
    load.queues.make(WINDOW_MS)
    if mix.router_share:
        load.routers.make(load.api, WINDOW_MS)


def _work(load: Load, dice: random.Random, steps: int, mix: Mix) -> None:
    of_queues = [durability for durability in QUEUE_CLASSES if durability in mix.classes]
    for _ in range(steps):
        if mix.router_share and dice.random() < mix.router_share:
            load.routers.step(load.api)
            continue
        if of_queues and dice.random() < mix.queue_share:
            load.queues.step(load.api, dice.choice(of_queues))
            continue
        durability = dice.choice(mix.classes)
        topic = f"{durability}.{dice.choice(('log', 'capped', 'again'))}"
        topic = topic if dice.random() < 0.9 else "changing"
        step = dice.random()
        if step < 0.95 - mix.delete_share:
            load.append(topic, long=dice.random() < LONG_SHARE)
        elif step < 0.95:
            load.delete(topic)
        elif topic == "changing":
            load.put(topic, durability=dice.choice(CLASSES))
        elif step < 0.98:
            load.put(f"{durability}.capped", cap_records=dice.choice((5, 25, 60)))
        else:
            load.make_again(durability)


def main() -> None:
    """DATA_DIR ACKNOWLEDGED SEED STEPS MIX, which is JSON."""
    data_dir, acknowledged, seed, steps, mix = sys.argv[1:]
    with Path(acknowledged).open("w") as notes:
        mixed = mix_of(json.loads(mix))
        run(Path(data_dir), notes, seed=int(seed), steps=int(steps), mix=mixed)


if __name__ == "__main__":
    main()
