"""The queue machine, walked at random with weights: ``python -m tests.engine.queue_walk
[--walks 1000] [--seed 0]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engine.queue_machine import STEPS_MS
from tests.engine.queue_machine_records import CONFIGS, TAGS
from tests.engine.queue_machine_restarts import Queues
from tests.engine.shard_walk import ShardWalk

MOVING = {"max_deliveries": 1, "dead_letter": "dead"}


class QueueWalk(ShardWalk):
    """The queue machine, walked at random."""

    length = 150
    machine: Queues

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.machine = machine = Queues()
        machine.start()
        for name in "qr":
            machine.put(name, self._patch() | self._one([{}, MOVING]))
        self.steps: list[tuple[int, Callable[[], None]]] = [
            *((25, self.append), (3, self.put), (1, self.delete), (2, self.delete_records)),
            (1, lambda: machine.revive(self._name())),
            *((2, lambda: machine.open_stream(self._name(), self._node())), (30, self.claim)),
            *((12, self.ack), (10, self.nack), (6, self.extend)),
            *((2, lambda: machine.unclaim(self._name(), self._picks())), (2, self.close_stream)),
            (8, lambda: machine.begin_move(self._name(), self.random.randint(1, 3))),
            *((8, self.end_move), (3, self.set_aside), (3, self.end_redrive), (12, self.look)),
            (14, lambda: machine.time_passes(self._one(STEPS_MS))),
            (1, lambda: machine.wall_clock_steps(self._one([-300, -50, -1, 1, 60, 400]))),
            *((8, self.commit_one), (12, machine.commit_all), (1, self.fail)),
            *((1, machine.next_file), (3, self.seal), (1, self.begin_checkpoint)),
            *((4, self.step_of_checkpoint), (1, machine.whole_checkpoint), (3, self.restart)),
        ]

    def check(self) -> None:
        self.machine.the_engine_is_the_model()
        self.machine.streams_that_hold_fewer_are_named()

    def _one(self, options: Any) -> Any:
        return self.random.choice(options)

    def _name(self) -> str:
        return str(self._one("qqqr"))

    def _node(self) -> str:
        return str(self._one("nm"))

    def _picks(self) -> list[int]:
        return [self.random.randint(0, self._one([3, 12, 40])) for _ in range(self._one([1, 2, 4]))]

    def _tokens(self) -> str:
        return str(self._one(["none", "current", "current", "stale"]))

    def append(self) -> None:
        records = [self._record() for _ in range(self._one([1, 1, 2, 3, 5]))]
        self.machine.append(self._name(), records, self._one([False, False, False, True]))

    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"data": self._one([1, "data" * 10])}
        kind = self.random.random()
        if kind < 0.2:
            return record | {"deliver_in": self._one([-5, 0, 1, 5, 30, 300])}
        if kind < 0.4:
            record["delay_ms"] = self._one([0, 1, 5, 30, 300])
        if self.random.random() < 0.3:
            record["tag"] = self._one(TAGS)
        return record

    def put(self) -> None:
        self.machine.put(self._name(), self._patch())

    def _patch(self) -> dict[str, Any]:
        return {
            name: self._one(values)
            for name, values in CONFIGS.items()
            if self.random.random() < 0.3
        }

    def delete(self) -> None:
        self.machine.delete(self._name(), self._one([True, True, False]))

    def delete_records(self) -> None:
        match = self._one([None, *TAGS, ["tag", "Glob", "x*"]])
        self.machine.delete_records(
            self._name(), self._one([None, self.random.randint(-2, 12)]), match
        )

    def claim(self) -> None:
        asks = [
            (
                self._one(["n", "m", *self.machine.streams]),
                self.random.randint(1, 4),
                self._one([100, 120, 300]),
            )
            for _ in range(self._one([1, 1, 2, 3]))
        ]
        self.machine.claim(self._name(), asks, self._one([True, False]))

    def ack(self) -> None:
        self.machine.ack(self._name(), self._node(), self._picks(), self._tokens())

    def nack(self) -> None:
        delay_ms = self._one([0, 0, 1, 30, 300])
        self.machine.nack(self._name(), self._node(), self._picks(), self._tokens(), delay_ms)

    def extend(self) -> None:
        lease_ms = self._one([100, 120, 300])
        self.machine.extend(self._name(), self._node(), self._picks(), self._tokens(), lease_ms)

    def close_stream(self) -> None:
        if self.machine.streams:
            self.machine.close_stream(self.random.randint(0, 2))

    def end_move(self) -> None:
        if self.machine.moving:
            self.machine.end_move(self.random.randint(0, 3), self._one([False, False, True]))

    def set_aside(self) -> None:
        picks = self.random.sample(range(-1, 9), self._one([1, 2, 4]))
        self.machine.set_aside(self._name(), picks)

    def end_redrive(self) -> None:
        if self.machine.aside:
            self.machine.end_redrive(self.random.randint(0, 3), self._one([True, False]))

    def look(self) -> None:
        self.machine.look(self._name(), self._one([None, "n"]), self.random.randint(0, 9))


if __name__ == "__main__":
    QueueWalk.main()
