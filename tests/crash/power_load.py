"""The load that is recorded for a power loss: all four classes, with sealing, checkpoints, deletes, evictions and recreation.

Runs as a program inside the recorded file system: ``python -m tests.crash.power_load DATA_DIR ACKNOWLEDGED --seed N``. Each line of
ACKNOWLEDGED is one step as JSON: what was asked, when it was sent and when it was acknowledged (CLOCK_MONOTONIC, nanoseconds).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import IO, Any

from tests.contract.api import Api
from tests.server import Server

CLASSES = ("fsync", "disk", "memory", "ephemeral")
WAL_FILE_BYTES = 64 << 10
WAL_SYNC_MS = 40
TAGS = ("a", "a:1", "b", None)
MATCHES = ("a", "b", ["tag", "Glob", "a*"], ["tag", "Eq", "a:1"])


class Load:
    """Sends one step after the other and notes each, whatever becomes of it."""

    def __init__(self, api: Api, notes: IO[str], dice: random.Random) -> None:
        self._api, self._notes, self._dice = api, notes, dice
        self._number = 0
        self._heads: dict[str, int] = {}

    def put(self, topic: str, **config: Any) -> None:
        self._do("put", topic, "PUT", "", config, config=config)

    def append(self, topic: str) -> None:
        self._number += 1
        records = []
        for position in range(self._dice.choice((1, 1, 3))):
            record: dict[str, Any] = {"data": [self._number, position, "x" * self._dice.choice((10, 300, 2500))]}
            tag = self._dice.choice(TAGS)
            records.append(record | ({} if tag is None else {"tag": tag}))
        body = self._do("append", topic, "POST", "", {"records": records}, records=records)
        self._heads[topic] = body["head_seq"]

    def delete(self, topic: str) -> None:
        fields: dict[str, Any] = {}
        if self._dice.random() < 0.6:
            fields["match"] = self._dice.choice(MATCHES)
        if not fields or self._dice.random() < 0.3:
            fields["before_seq"] = max(0, self._heads.get(topic, 0) - self._dice.randint(0, 40))
        self._do("delete", topic, "POST", "/delete", fields, body=fields)

    def remove(self, topic: str) -> None:
        self._do("remove", topic, "DELETE", "", None)
        self._heads.pop(topic, None)

    def _do(self, step: str, topic: str, method: str, tail: str, sent: Any, **noted: Any) -> Any:
        began = time.monotonic_ns()
        answer = self._api.call(method, f"/v0/topics/{topic}{tail}", sent)
        ended = time.monotonic_ns()
        assert answer.status in (200, 201), str(answer)
        body = answer.json()
        note = {"step": step, "topic": topic, "sent": began, "acknowledged": ended, **noted}
        if "first_seq" in body:
            note["first_seq"] = body["first_seq"]
        self._notes.write(json.dumps(note) + "\n")
        return body


def run(data_dir: Path, notes: IO[str], *, seed: int, steps: int, deletes: bool = True) -> None:
    """Two lives of a server with a clean stop between them: the second one begins from a checkpoint."""
    dice = random.Random(seed)
    server = Server(data_dir, shards=1, wal_file_bytes=WAL_FILE_BYTES, wal_sync_ms=WAL_SYNC_MS)
    with server:
        for life in range(2):
            with Api(server.address) as api:
                load = Load(api, notes, dice)
                _work(load, dice, steps // 2, first=life == 0, deletes=deletes)
            if life == 0:
                server.stop()
                server.start()
        server.kill()


def _work(load: Load, dice: random.Random, steps: int, *, first: bool, deletes: bool) -> None:
    if first:
        for durability in CLASSES:
            load.put(f"{durability}.log", durability=durability)
            load.put(f"{durability}.capped", durability=durability, cap_records=25)
            load.put(f"{durability}.again", durability=durability)
    for _ in range(steps):
        durability = dice.choice(("fsync", "fsync", "disk", "memory", "ephemeral"))
        topic = f"{durability}.{dice.choice(('log', 'capped', 'again'))}"
        step = dice.random()
        if step < 0.85 or (step < 0.95 and not deletes):
            load.append(topic)
        elif step < 0.95:
            load.delete(topic)
        elif step < 0.98:
            load.put(f"{durability}.capped", cap_records=dice.choice((5, 25, 60)))
        else:
            load.remove(f"{durability}.again")
            load.put(f"{durability}.again", durability=durability)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("acknowledged", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--no-deletes", action="store_true")
    arguments = parser.parse_args()
    with arguments.acknowledged.open("w") as notes:
        run(arguments.data_dir, notes, seed=arguments.seed, steps=arguments.steps, deletes=not arguments.no_deletes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
