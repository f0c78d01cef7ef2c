"""Base of the walks: a machine, walked at random with weights.

Hypothesis finds the shortest way to a mistake; this finds mistakes that are far away. A walk that
fails names its seed.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from tests.engine.shard_machine import ShardMachine


class ShardWalk:
    """One run: ``length`` of the ``steps``, which are taken by their weights."""

    length: int
    steps: list[tuple[int, Callable[[], None]]]
    machine: ShardMachine

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def check(self) -> None:
        """After each step."""
        raise NotImplementedError

    def run(self, length: int) -> None:
        weights = [weight for weight, _ in self.steps]
        for _ in range(length):
            _, step = self.random.choices(self.steps, weights)[0]
            step()
            self.check()
        self.machine.teardown()

    @classmethod
    def walk(cls, seed: int, length: int | None = None) -> None:
        """Raises what went wrong, with the seed."""
        length = length or cls.length
        try:
            cls(seed).run(length)
        except Exception as error:
            error.add_note(f"walk of seed {seed}, {length} steps")
            raise

    @classmethod
    def main(cls) -> None:
        options = argparse.ArgumentParser(description=cls.__doc__)
        options.add_argument("--walks", type=int, default=1000)
        options.add_argument("--seed", type=int, default=0)
        options.add_argument("--steps", type=int, default=cls.length)
        chosen = options.parse_args()
        for seed in range(chosen.seed, chosen.seed + chosen.walks):
            cls.walk(seed, chosen.steps)
        print(f"{chosen.walks} walks of {chosen.steps} steps: no difference")

    # Steps

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
        power, share = self.random.random() < 0.3, self.random.randint(0, 10)
        self.machine.restart(power, share, True, self.random.random() < 0.3)
