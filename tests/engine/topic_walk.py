"""The machine of `test_topic_machine`, walked at random with weights: ``python -m
tests.engine.topic_walk [--walks 1000] [--seed 0]``.

Hypothesis finds the shortest way to a mistake; this finds mistakes that are far away. A walk that
fails names its seed.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

from tests.engine.test_topic_machine import Retention
from tests.engine.topic_machine import TAGS

STEPS = 200


class Walk:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = Retention()
        self.machine.begin()
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.append),
            (3, self.begin_long),
            (4, self.submit_long),
            (1, self.fail_long),
            (1, self.no_room_midway),
            (4, self.put),
            (1, self.delete),
            (3, self.trim),
            (12, self.delete_records),
            (12, self.read),
            (8, self.pick),
            (10, self.time),
            (12, self.commit_one),
            (12, self.machine.commit_all),
            (1, self.fail),
            (2, self.machine.next_file),
            (4, self.seal),
            (2, self.begin_checkpoint),
            (5, self.step_of_checkpoint),
            (2, self.machine.whole_checkpoint),
            (3, self.restart),
        ]

    def run(self, steps: int) -> None:
        weights = [weight for weight, _ in self.steps]
        for _ in range(steps):
            _, step = self.random.choices(self.steps, weights)[0]
            step()
            self.machine.the_engine_is_the_model()

    def _name(self) -> str:
        return self.random.choice("aaab")

    def append(self) -> None:
        self.machine.append(self._name(), self._records(), self.random.choice([None, "n"]))

    def begin_long(self) -> None:
        if self.machine.held is None:
            self.machine.begin_long(self._name(), self._records(), self.random.choice([None, "n"]))

    def submit_long(self) -> None:
        if self.machine.held is not None:
            self.machine.submit_long()

    def fail_long(self) -> None:
        if self.machine.held is not None:
            self.machine.fail_long()

    def no_room_midway(self) -> None:
        self.machine.no_room_midway(self._name(), self._records(), self.random.choice([1, 51, 201]))

    def _records(self) -> list[dict[str, Any]]:
        return [self._record() for _ in range(self.random.choice([1, 1, 1, 2, 3, 6]))]

    def _record(self) -> dict[str, Any]:
        choice = self.random.choice
        record: dict[str, Any] = {"data": choice([1, "data" * 10])}
        if choice([True, False]):
            record["tag"] = choice(TAGS)
        if choice([True, False, False]):
            record["node"] = choice("nm")
        if choice([True, False, False]):
            record["meta"] = {"k": 1}
        return record

    def put(self) -> None:
        choice = self.random.choice
        options: dict[str, list[Any]] = {
            "cap_records": [0, 0, 3, 10, 30],
            "cap_bytes": [0, 0, 700, 2000],
            "ttl_ms": [0, 0, 50, 200],
            "discard": ["old", "old", "reject"],
            "durability": ["ephemeral", "disk", "disk", "fsync"],
            "dedupe_node": [True, False],
        }
        chosen = {
            name: choice(values) for name, values in options.items() if choice([True, False, False])
        }
        self.machine.put(self._name(), chosen)

    def delete(self) -> None:
        self.machine.delete(self._name(), self.random.choice([True, True, False]))

    def trim(self) -> None:
        self.machine.trim(self._name(), self.random.randint(1, 5))

    def delete_records(self) -> None:
        choice = self.random.choice
        tag = choice(TAGS)
        match = choice([None, tag, ["tag", "Eq", tag], ["tag", "Glob", f"{tag}*"]])
        back = choice([None, self.random.randint(-3, 40)])
        self.machine.delete_records(self._name(), back, match)

    def read(self) -> None:
        choice = self.random.choice
        nodes = set(choice(["", "n", "m", "nm"]))
        flags = choice([True, False]), choice([True, False]), choice([True, False])
        bounds = choice([0, 0, 1, 3, 12]), choice([None, None, 0, 1, 5, 20])
        limit = choice([1, 2, 5, 1000])
        self.machine.read(
            self._name(),
            self.random.randint(0, 60),
            limit,
            nodes,
            flags,
            choice([None, 0, 1]),
            *bounds,
        )

    def pick(self) -> None:
        choice = self.random.choice
        tag = choice(TAGS)
        match = choice([None, None, tag, ["tag", "Glob", f"{tag}*"]])
        hops = [
            (self.random.randint(0, 6), self.random.randint(1, 8), choice([0, 1, 2, 8]))
            for _ in range(choice([0, 0, 1, 3, 6]))
        ]
        bounds = choice([1, 2, 5, 999]), choice([1, 90, 400, 9999]), choice([1, 3, 999])
        back, scan = self.random.randint(0, 60), choice([1, 2, 7, 999])
        self.machine.pick(self._name(), back, match, hops, (*bounds, scan), choice([True, False]))

    def time(self) -> None:
        self.machine.time_passes(self.random.choice([1, 4, 6, 15, 51, -3, -60]))

    def commit_one(self) -> None:
        if self.machine.world.pending:
            self.machine.commit_one()

    def fail(self) -> None:
        if self.machine.world.pending:
            self.machine.fail()

    def seal(self) -> None:
        self.machine.seal(self.random.choice([True, False]))

    def begin_checkpoint(self) -> None:
        if self.machine.checkpointing is None:
            self.machine.begin_checkpoint()

    def step_of_checkpoint(self) -> None:
        if self.machine.checkpointing is not None:
            self.machine.step_of_checkpoint()

    def restart(self) -> None:
        power, share, old = (
            self.random.random() < 0.3,
            self.random.randint(0, 10),
            self.random.random() < 0.2,
        )
        self.machine.restart(power, share, True, old)


def walk(seed: int, steps: int = STEPS) -> None:
    """Raises what went wrong, with the seed."""
    try:
        Walk(seed).run(steps)
    except Exception as error:
        error.add_note(f"walk of seed {seed}, {steps} steps")
        raise


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--walks", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--steps", type=int, default=STEPS)
    chosen = options.parse_args()
    for seed in range(chosen.seed, chosen.seed + chosen.walks):
        walk(seed, chosen.steps)
    print(f"{chosen.walks} walks of {chosen.steps} steps: no difference")


if __name__ == "__main__":
    main()
