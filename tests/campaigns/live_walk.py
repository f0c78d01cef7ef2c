"""Walks through what may happen to a front's streams: ``python -m tests.campaigns.live_walk
[--walks 1000] [--seed 0]``.

A shard of a few lines (topics are a head and a floor, messages take their time), clients with small
sockets that read now and then, break off and come back with or without an id. Every client must be
shown every record once and in order, or told of its loss. A walk that fails names its seed.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.campaigns.live_walk_client import Client
from tests.campaigns.live_walk_shard import TOPICS, Shard, Topic
from tests.support.live_desk import calm, press, relax
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.formats.api.watch import View
from topics.front.limits import make_slots
from topics.front.live.live import Live
from topics.front.live.watch_sessions import WatchSession
from topics.front.live.watches import Watches

STEPS = 150


class Walk:
    """One run."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.random, self._nursery = random.Random(seed), nursery
        self.shard = Shard()
        slots, self.pressure = make_slots(Settings(), 100), calm()
        self.live = self.shard.live = Live(self.shard, Settings(), slots, self.pressure)  # type: ignore[arg-type]
        self._watches = Watches(self.live)
        self.clients: list[Client] = []
        self._old: list[Any] = []

    async def run(self, steps: int) -> None:
        self._nursery.start_soon(self.live.run)
        await wait_all_tasks_blocked()
        for _ in range(3):
            session = WatchSession("wid", ANYONE, View(), 15.0, dict.fromkeys(TOPICS, (0, 1)))
            self.clients.append(Client(self._watches, self._nursery, session))
            self.clients[-1].come(with_id=False)
            await wait_all_tasks_blocked()
        weighted: list[tuple[int, Callable[[], None]]] = [
            (30, self.append),
            (3, self.evict),
            (2, self.delete),
            (60, self.hear),
            (60, self.tell),
            (40, self.read),
            (3, self.die),
            (6, self.leave_and_come),
            (2, self.take_over),
            (4, self.press),
        ]
        for _ in range(steps):
            (step,) = self.random.choices(
                [step for _, step in weighted], [weight for weight, _ in weighted]
            )
            step()
            # Streams begin in the order of their clients.
            if step in (self.leave_and_come, self.take_over) or self.random.random() < 0.7:
                await wait_all_tasks_blocked()
        await self.settle()
        for client in self.clients:
            client.leave()
        for sock in self._old:
            sock.close()
        await wait_all_tasks_blocked()
        assert not self.live.streams
        assert not self.live.feeds.by_number
        assert not self.live.feeds.kept.size

    # What may happen

    def _topic(self) -> Topic | None:
        return self.shard.topics.get(self.random.choice(TOPICS))

    def append(self) -> None:
        topic = self._topic()
        if topic is not None and self.shard.is_up:
            topic.head += self.random.choice([1, 1, 2, 5])
            topic.size = self.random.choice([1, 1, 100, 20_000])
            self.shard.pump()

    def evict(self) -> None:
        topic = self._topic()
        if topic is not None:
            topic.floor = self.random.randint(topic.floor, topic.head)

    def delete(self) -> None:
        name = self.random.choice(TOPICS)
        if not self.shard.is_up:
            return
        if name in self.shard.topics:
            self.shard.delete(name, again=self.random.random() < 0.7)
        else:
            self.shard.make(name)

    def hear(self) -> None:
        """The shard hears some of what was said to it."""
        self._take_out(self.shard.to_shard)

    def tell(self) -> None:
        """The front hears some of what the shard has said."""
        self._take_out(self.shard.to_front)

    def _take_out(self, queue: deque[Callable[[], None]]) -> None:
        for _ in range(self.random.choice([1, 2, 10])):
            if queue:
                queue.popleft()()

    def read(self) -> None:
        client = self.random.choice(self.clients)
        for _ in range(self.random.choice([1, 10, 1000])):
            if not client.read(self.random.choice([1, 100, 5000])):
                break

    def die(self) -> None:
        self.shard.die() if self.shard.is_up else self.shard.rise()

    def leave_and_come(self) -> None:
        """With an id whatever was on its way is shown again; without one a client must have read
        what left the server.
        """
        client = self.random.choice(self.clients)
        with_id = client.last_id is not None and self.random.random() < 0.7
        while not with_id and client.read(1 << 20):
            pass
        client.leave()
        client.come(with_id=with_id)

    def take_over(self) -> None:
        client = self.random.choice(self.clients)
        if client.last_id is not None:
            self._old.append(client.sock)
            client.come(with_id=True)

    def press(self) -> None:
        """Pages come late, or in time again."""
        if self.pressure.is_calm:
            press(self.pressure, pace=self.random.choice([0.0, 0.05]))
        else:
            relax(self.pressure)

    # The end

    async def settle(self) -> None:
        """Nothing more happens: everybody comes to the head."""
        if not self.shard.is_up:
            self.shard.rise()
        relax(self.pressure)
        await trio.sleep(0.05)  # what is late comes
        for _ in range(4):
            for client in self.clients:
                # What was lost on the way is told to whoever comes back.
                if client.session.deleted.keys() - client.gone:
                    client.leave()
                    client.come(with_id=client.last_id is not None)
            while await self._carry_everything():
                pass
            if all(map(self._is_served, self.clients)):
                return
            await trio.sleep(0.3)  # who was refused tries again
        raise AssertionError(
            [(client.at, client.gone, client.caught_up) for client in self.clients]
        )

    async def _carry_everything(self) -> bool:
        """Deliver what is under way; whether there was anything."""
        await wait_all_tasks_blocked()
        carried = False
        for queue in (self.shard.to_shard, self.shard.to_front):
            while queue:
                queue.popleft()()
                carried = True
        for client in self.clients:
            while client.read(1 << 20):
                carried = True
        return carried

    def _is_served(self, client: Client) -> bool:
        left = [
            (name, topic) for name, topic in self.shard.topics.items() if name not in client.gone
        ]
        return all(
            name in client.caught_up
            and client.at[name] in ((topic.head, topic.epoch), (topic.head, None))
            for name, topic in left
        )


async def walk(seed: int, steps: int = STEPS) -> None:
    """One run in a nursery of its own. Raises what went wrong."""
    # Tasks that are ready together run in an order of its choice.
    trio._core._run._r.seed(seed)
    async with trio.open_nursery() as nursery:
        await Walk(seed, nursery).run(steps)
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.walks):
        try:
            trio.run(walk, seed)
        except BaseException:
            print(f"walk of seed {seed}, {STEPS} steps", flush=True)
            raise
    print(f"{asked.walks} walks of {STEPS} steps: no difference")


if __name__ == "__main__":
    main()
