"""A random walk of three shards whose routers forward, and the model that judges it.

Topics form a tree of routers. At random, records are appended and deleted, shards are killed and
start again, sessions end, messages about forwards are held up, and logs go on in new files, which
are sealed. At the end everything is let go, and each router is judged by the history of its ends:

    a copy             the next record of the source that the router wants, in the order of seqs
    not copied         must have been gone from the source before the router came to it
    nothing else       so no record is copied twice
    forwarded_total    the number of copies

What a dest has got is taken from its commits, and after a kill from what it replays.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.support.routing import RoutedShards
from topics.engine.changes.change import Change
from topics.engine.changes.forward import Advance, Forward
from topics.engine.reading import read
from topics.engine.store import Store
from topics.formats.api.diff_body import Diff
from topics.formats.wire.calls import FORWARD

CLASSES = ["disk", "disk", "fsync", "ephemeral"]
TAGS = ["x", "y", "xy"]
CYCLE = ("p0", "p1")
STEP_S = 0.01


@dataclass
class Route:
    """A router, and what is known of it."""

    name: str
    source: str
    dest: str
    fields: dict[str, Any]
    must: set[int] = field(default_factory=set)  # seqs of the source that it has copied
    is_vague: bool = False  # copies were lost before they were seen

    def wants(self, record: dict[str, Any]) -> bool:
        match = self.fields.get("filter")
        if match is None:
            return True
        tag = record.get("$tag")
        if tag is None:
            return False
        return bool(tag == match[2] if match[1] == "Eq" else tag.startswith(match[2][:-1]))


class Walk:
    """One walk. A seed gives the same graph and the same steps."""

    def __init__(self, shards: RoutedShards, seed: int) -> None:
        self.shards, self.random = shards, random.Random(seed)
        self.topics: dict[str, dict[str, Any]] = {}
        self.roots: list[str] = []
        self.routes: dict[str, Route] = {}
        self.by_id: dict[int, Route] = {}
        # By topic and seq: the record, and the router that it came from.
        self.history: defaultdict[str, dict[int, tuple[dict[str, Any], str]]] = defaultdict(dict)
        self.burnt: defaultdict[str, int] = defaultdict(int)
        self.killed: set[int] = set()
        self._number = 0
        for shard in shards.loops:
            self._watch(shard)

    # The graph

    async def build(self) -> None:
        choose = self.random
        names = [f"t{number}" for number in range(9)]
        for name in names:
            is_root = len(self.roots) < 2
            config: dict[str, Any] = {"durability": choose.choice(CLASSES)}
            if choose.random() < 0.25:
                config["cap_records"] = choose.randint(5, 20)
                if not is_root and choose.random() < 0.6:
                    config["discard"] = "reject"
            await self.shards.make(name, **config)
            self.topics[name] = config
            if is_root:
                self.roots.append(name)
                continue
            source = choose.choice([each for each in self.topics if each != name])
            count = 2 if choose.random() < 0.2 else 1
            for number in range(count):
                await self._route(f"{source}>{name}:{number}", source, name, is_stamped=count > 1)
        await self._make_cycle()
        for route in self.routes.values():
            self.by_id[self.shards.router_id(route.name)] = route

    async def _route(self, name: str, source: str, dest: str, *, is_stamped: bool) -> None:
        choose = self.random
        fields: dict[str, Any] = {}
        if is_stamped or choose.random() < 0.3:
            fields["guarantee"] = "exactly_once"
        if choose.random() < 0.3:
            op, tag = choose.choice(["Eq", "Glob"]), choose.choice(TAGS)
            fields["filter"] = ["tag", op, tag + "*" * (op == "Glob")]
        if choose.random() < 0.2:
            fields["preserve_tag"] = False
        found = await self.shards.put(name, source, dest, **fields)
        assert isinstance(found, dict), found
        self.routes[name] = Route(name, source, dest, fields)

    async def _make_cycle(self) -> None:
        one, other = CYCLE
        await self.shards.route(f"{one}>{other}")
        await self.shards.route(f"{other}>{one}", allow_cycle=True)

    # What happens

    def _watch(self, shard: int) -> None:
        commits = self.shards.loops[shard].context.commits
        on_commit = commits.on_commit

        def committed(change: Change) -> None:
            if isinstance(change, Forward):
                self._note_copies(change, commits.store)
            elif isinstance(change, Advance) and change.router in self.by_id:
                self.burnt[self.by_id[change.router].name] += change.trimmed
            on_commit(change)

        commits.on_commit = committed

    def _note_copies(self, change: Forward, store: Store) -> None:
        route = self.by_id.get(change.router)
        if route is None:
            return
        index = change.topic.index
        at = index.find(change.first_seq)
        if at == len(index) or index.entry(at)[0] != change.first_seq:
            return  # a cap has taken them
        text = b"[" + bytes(store.records(index.entry(at)[2]).slice(0, change.count)) + b"]"
        for at, record in enumerate(msgspec.json.decode(text)):
            assert record["$seq"] == change.first_seq + at, (route.name, record)
            known = self.history[route.dest].setdefault(record["$seq"], (record, route.name))
            assert known == (record, route.name), "a seq has one record"

    def _note_replayed(self, shard: int) -> None:
        """Copies that were written, and not committed before the kill."""
        by_dest: defaultdict[str, list[Route]] = defaultdict(list)
        for route in self.routes.values():
            by_dest[route.dest].append(route)
        for dest, routes in by_dest.items():
            if self.shards.shard_of(dest) != shard:
                continue
            if "ephemeral" in self.topics[dest].values() or "cap_records" in self.topics[dest]:
                for route in routes:
                    route.is_vague = True
            for record in self.shards.pages(dest)[0]:
                name = routes[0].name
                if len(routes) > 1:
                    name = record["meta"]["_topics_router"]["router"]
                known = self.history[dest].setdefault(record["$seq"], (record, name))
                assert known == (record, name), "replay gives the same record"

    def _note_done(self, topic: str) -> None:
        """Before records of a topic may go: which of them its routers have copied."""
        if self.shards.shard_of(topic) not in self.shards.loops:
            return
        routes = [route for route in self.routes.values() if route.source == topic]
        alive = {record["$seq"]: record for record in self.shards.pages(topic)[0]}
        for route in routes:
            if self.shards.shard_of(route.dest) in self.shards.loops:
                cursor = self._reached(route)[0]
                route.must |= {
                    seq for seq, record in alive.items() if seq <= cursor and route.wants(record)
                }

    def _reached(self, route: Route) -> tuple[int, int]:
        """Cursor and total of a router, as its dest has it."""
        known = self.shards.topic(route.dest).derivations or {}
        router = next(router for router, each in self.by_id.items() if each is route)
        cursor, total = known.get(router, (0, 0))
        return cursor, total

    def _is_up(self, topic: str) -> bool:
        return self.shards.shard_of(topic) in self.shards.loops

    # Steps

    async def step(self) -> None:
        steps = [(self.append, 10), (self.delete, 2), (self.restart, 1), (self.cut, 1)]
        steps += [(self.hold, 2), (self.let_go, 2), (self.end_file, 2), (self.wait, 4)]
        steps += [(self.make_room, 2)]
        chosen = self.random.choices(steps, [weight for _, weight in steps])[0][0]
        await chosen()

    async def append(self) -> None:
        name = self.random.choice(self.roots)
        records: list[dict[str, Any]] = []
        for _ in range(self.random.choice([1, 1, 2, 5])):
            self._number += 1
            record: dict[str, Any] = {"data": self._number}
            if self.random.random() < 0.1:
                record["data"] = [self._number, "x" * 5000]
            if self.random.random() < 0.7:
                record["tag"] = self.random.choice(TAGS)
            if self.random.random() < 0.3:
                record["meta"] = {"m": self._number}
            records.append(record)
        if not self._is_up(name):
            return
        self._note_done(name)
        for seq, record in zip(await self.shards.write(name, records), records, strict=True):
            shown = {"data": record["data"], "$seq": seq}
            if "tag" in record:
                shown["$tag"] = record["tag"]
            self.history[name][seq] = shown, ""

    async def delete(self) -> None:
        name, tag = self.random.choice([*self.topics]), self.random.choice(TAGS)
        if self._is_up(name):
            self._note_done(name)
            await self.shards.delete_records(name, match=["tag", "Eq", tag])

    async def make_room(self) -> None:
        name = self.random.choice([*self.topics])
        ahead = self.random.randint(0, 10)
        if self._is_up(name):
            self._note_done(name)
            await self.shards.delete_records(
                name, before_seq=max(self.shards.topic(name).head_seq - ahead, 1)
            )

    async def restart(self) -> None:
        shard = self.random.randrange(3)
        for name in self.topics:
            self._note_done(name)
        self.killed.add(shard)
        await self.shards.kill(shard)
        for _ in range(self.random.randint(0, 3)):
            await self.append()
        self.start(shard)

    def start(self, shard: int) -> None:
        self.shards.start(shard)
        self._watch(shard)
        self._note_replayed(shard)

    async def cut(self) -> None:
        one, other = self.random.sample(range(3), 2)
        self.shards.disconnect(one, other)
        await self.wait()
        self.shards.connect(one, other)

    async def hold(self) -> None:
        pair = tuple(self.random.sample(range(3), 2))
        self.shards.on_message = lambda *found: found != (*pair, FORWARD.subject)

    async def let_go(self) -> None:
        self.shards.go_on()

    async def end_file(self) -> None:
        await self.shards.end_file(self.random.randrange(3))

    async def wait(self) -> None:
        await trio.sleep(self.random.random() * STEP_S * 3)

    # The end

    async def run(self, steps: int) -> None:
        await self.build()
        await self.shards.write(CYCLE[0], [{"data": "round"}])
        for _ in range(steps):
            await self.step()
        self.shards.go_on()
        for name, config in self.topics.items():
            if config.get("discard"):
                await self.shards.make(name, **{**config, "cap_records": 100_000})
        await self._settle()
        for name in self.topics:
            self._note_done(name)
        for route in self.routes.values():
            self.judge(route)
        for name in self.topics:
            self._judge_seqs(name)
        await self._judge_totals()
        await self._judge_replay()

    async def _settle(self) -> None:
        """Until nothing moves any more: a chain settles link by link."""
        for _ in range(3):
            await self.shards.settle()
            await trio.sleep(STEP_S)

    def copies(self, route: Route) -> list[dict[str, Any]]:
        """In the order of their seqs."""
        found = self.history[route.dest].items()
        return [record for _, (record, name) in sorted(found, key=_by_seq) if name == route.name]

    def judge(self, route: Route) -> None:
        """Find the copies among the records of the source."""
        copies = [record["data"] for record in self.copies(route)]
        states = {0}  # how many copies may be used up
        for seq, (record, _) in sorted(self.history[route.source].items(), key=_by_seq):
            if not route.wants(record):
                assert seq not in route.must
                continue
            used = {at + 1 for at in states if at < len(copies) and copies[at] == record["data"]}
            may_lack = seq not in route.must or route.is_vague
            states = used | states if may_lack else used
            assert states, f"{route.name}: seq {seq} of the source is missing or out of order"
        assert len(copies) in states, f"{route.name}: copies that no record stands for"
        lost = self.shards.topic(route.source).head_seq - len(copies)
        assert self.burnt[route.name] <= lost, f"{route.name}: burnt more than was lost"

    def _judge_seqs(self, name: str) -> None:
        """A dest has a copy or a loss of its source for each seq."""
        routes = [route for route in self.routes.values() if route.dest == name]
        if not routes or self.shards.shard_of(name) in self.killed:
            return
        seqs = [seq for seq, (_, origin) in self.history[name].items() if origin]
        burnt = sum(self.burnt[route.name] for route in routes)
        head = self.shards.topic(name).head_seq
        assert head == len(seqs) + burnt, f"{name}: {len(seqs)} copies, {burnt} burnt, head {head}"

    async def _judge_totals(self) -> None:
        for route in self.routes.values():
            found = await self.shards.get(route.name)
            if not route.is_vague:
                assert found["forwarded_total"] == len(self.copies(route)), route.name
            assert found["lag_records"] == 0, route.name

    async def _judge_replay(self) -> None:
        """After another start everything reads as before."""
        kept = [name for name, config in self.topics.items() if config["durability"] != "ephemeral"]
        before = {name: b",".join(self._bytes_of(name)) for name in kept}
        reached = [self._reached(route) for route in self.routes.values()]
        for shard in range(3):
            await self.shards.kill(shard)
        for shard in range(3):
            self.start(shard)
        self._check_bytes(before)
        await self._settle()
        self._check_bytes(before)
        for route, (cursor, total) in zip(self.routes.values(), reached, strict=True):
            found = self._reached(route)  # `ephemeral` sources have lost something once more
            assert (found[0] >= cursor, found[1]) == (True, total), route.name

    def _check_bytes(self, before: dict[str, bytes]) -> None:
        for name, found in before.items():
            assert b",".join(self._bytes_of(name)) == found, name

    def _bytes_of(self, name: str) -> Iterator[bytes]:
        context = self.shards.loops[self.shards.shard_of(name)].context
        seq = 0
        while True:
            asked = Diff(limit=1000, include_tags=True)
            page = read(self.shards.topic(name), asked, context.store, seq)
            yield from map(bytes, page.pieces)
            if page.caught_up:
                return
            seq = page.next_from_seq


def _by_seq(item: tuple[int, object]) -> int:
    return item[0]


async def walk(folder: Path, nursery: trio.Nursery, seed: int, steps: int) -> None:
    """Raises `AssertionError`, which says how to walk so again."""
    shards = RoutedShards(folder, nursery)
    found = Walk(shards, seed)
    try:
        await found.run(steps)
    except BaseException as error:
        routes = {route.name: route.fields for route in found.routes.values()}
        error.add_note(f"walk(seed={seed}, steps={steps})\n{found.topics}\n{routes}")
        raise
    finally:
        found.shards.go_on()
        await shards.close()
