"""The machine of `test_topic_machine`, walked at random with weights: ``python -m
tests.engine.topic_walk [--walks 1000] [--seed 0]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engine.shard_walk import ShardWalk
from tests.engine.test_topic_machine import Retention
from tests.engine.topic_machine import TAGS


class TopicWalk(ShardWalk):
    """The topic machine, walked at random."""

    length = 200
    machine: Retention

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.machine = Retention()
        self.machine.begin()
        self.steps: list[tuple[int, Callable[[], None]]] = [
            *((30, self.append), (3, self.begin_long), (4, self.submit_long), (1, self.fail_long)),
            *((1, self.no_room_midway), (4, self.put), (1, self.delete), (3, self.trim)),
            *((12, self.delete_records), (20, self.delete_more), (12, self.read), (8, self.pick)),
            *((10, self.time), (12, self.commit_one), (12, self.machine.commit_all)),
            *((1, self.fail), (2, self.machine.next_file), (4, self.seal)),
            *((2, self.begin_checkpoint), (5, self.step_of_checkpoint)),
            *((2, self.machine.whole_checkpoint), (3, self.restart)),
        ]

    def check(self) -> None:
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

    def delete_more(self) -> None:
        if self.machine.rests:
            self.machine.delete_more()

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


if __name__ == "__main__":
    TopicWalk.main()
