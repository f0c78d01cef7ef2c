"""Graph of routers: all routers of the server, as the shard that owns them decides on them (§6).

A router is an edge from its source to its dest. A dest has one source, and no router closes a cycle
unless it allows that: then the hops of records on the cycle are bounded. Each life of a router has
an id: one that gets another source or dest is a new life of its name. Ids rise and are never used
again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from topics.errors import RouterCycle, RouterNotFound, TopicExistsIncompatible
from topics.formats.api.router_json import RouterConfig
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import RouterBody, decode_router, encode_router

FAN_IN = "router_dest_fan_in"


@dataclass(frozen=True)
class Router:
    """One life of a router. ``base_total``: records that its name forwarded in earlier lives."""

    id: int
    name: str
    config: RouterConfig
    source_id: int
    source_epoch: int
    dest_id: int
    start_seq: int  # head of the source when it was made: what follows is forwarded
    base_total: int = 0

    @property
    def source(self) -> str:
        """The topic whose records it forwards."""
        return self.config.source

    @property
    def dest(self) -> str:
        """The topic that gets the copies."""
        return self.config.dest

    @cached_property
    def packed(self) -> bytes:
        """Its bytes in logs and checkpoints."""
        return encode_router(
            RouterBody(
                name=self.name,
                id=self.id,
                config=msgspec.structs.asdict(self.config),
                source_id=self.source_id,
                epoch=self.source_epoch,
                dest_id=self.dest_id,
                start_seq=self.start_seq,
                base_total=self.base_total,
            )
        )

    @classmethod
    def unpack(cls, packed: Buffer) -> Router:
        """The router that ``packed`` holds."""
        held = decode_router(packed)
        return cls(
            id=held.id,
            name=held.name,
            config=msgspec.convert(held.config, RouterConfig),
            source_id=held.source_id,
            source_epoch=held.epoch,
            dest_id=held.dest_id,
            start_seq=held.start_seq,
            base_total=held.base_total,
        )


class RouterGraph:
    """The routers, by name, by id and by topic. ``last_id``: the highest id that was ever used.
    ``cyclic``: ids of those that stand on a cycle.
    """

    def __init__(self) -> None:
        self.cyclic: set[int] = set()
        self.by_name: dict[str, Router] = {}
        self.by_id: dict[int, Router] = {}
        self.last_id = 0
        self._names: list[str] = []  # sorted
        self._allowing = 0  # how many allow a cycle
        # Of each topic: the routers that it is the source of, and those that it is the dest of.
        self._from: dict[str, dict[int, Router]] = {}
        self._into: dict[str, dict[int, Router]] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    # Asking

    def router(self, name: str) -> Router:
        """The router of that name. Raises `RouterNotFound`."""
        found = self.by_name.get(name)
        if found is None:
            raise RouterNotFound(name)
        return found

    def names(self, prefix: str, after: str | None) -> Iterator[str]:
        """Names that begin so, in order, those above ``after``."""
        start = bisect_left(self._names, prefix)
        if after is not None:
            start = max(start, bisect_right(self._names, after))
        for at in range(start, len(self._names)):
            name = self._names[at]
            if not name.startswith(prefix):
                return
            yield name

    def select(
        self, prefix: str, after: str | None, source: str | None, dest: str | None
    ) -> Iterator[Router]:
        """The routers of `names` that have these ends, each if given."""
        names: Iterable[str] = self.names(prefix, after)
        if source is not None or dest is not None:
            named = self._from.get(source, {}) if source else self._into.get(dest or "", {})
            names = sorted(
                router.name
                for router in named.values()
                if router.name.startswith(prefix) and (after is None or router.name > after)
            )
        for name in names:
            router = self.by_name[name]
            if source in (None, router.source) and dest in (None, router.dest):
                yield router

    def of_topic(self, topic: str) -> list[Router]:
        """The routers that name the topic, by id."""
        found = {**self._from.get(topic, {}), **self._into.get(topic, {})}
        return [found[router_id] for router_id in sorted(found)]

    def check(self, name: str, config: RouterConfig) -> None:
        """Whether the router ``name`` may get this config. What it has already is not judged again.

        Raises `TopicExistsIncompatible` when its dest has another source, `RouterCycle` when it
        would close a cycle and does not allow that.
        """
        now = self.by_name.get(name)
        is_moved = now is None or (now.source, now.dest) != (config.source, config.dest)
        if is_moved:
            self._check_fan_in(name, config)
        if not config.allow_cycle and (now is None or is_moved or now.config.allow_cycle):
            way = self._way(config.dest, config.source, name)
            if way is not None:
                raise RouterCycle([config.source, *way])

    def _check_fan_in(self, name: str, config: RouterConfig) -> None:
        for other in self._into.get(config.dest, {}).values():
            if other.name != name and other.source != config.source:
                raise TopicExistsIncompatible(
                    f'topic "{other.dest}" is the dest of another source, and may have one only',
                    reason=FAN_IN,
                    topic=other.dest,
                )

    def _way(self, start: str, end: str, without: str) -> list[str] | None:
        """The shortest way along routers from one topic to another, both included; the router
        ``without`` is not taken.
        """
        before: dict[str, str | None] = {start: None}
        line = deque([start])
        while line:
            topic = line.popleft()
            if topic == end:
                return _path(before, end)
            for router in self._from.get(topic, {}).values():
                if router.name != without and router.dest not in before:
                    before[router.dest] = topic
                    line.append(router.dest)
        return None

    # Changing

    def put(self, router: Router) -> None:
        """From now on this is the router of its name. Nothing happens when there is a later life of
        the name.
        """
        self.last_id = max(self.last_id, router.id)
        earlier = self.by_name.get(router.name)
        if earlier is None:
            insort(self._names, router.name)
        elif earlier.id > router.id:
            return
        else:
            self._unlink(earlier)
        self.by_name[router.name] = self.by_id[router.id] = router
        self._from.setdefault(router.source, {})[router.id] = router
        self._into.setdefault(router.dest, {})[router.id] = router
        self._allowing += router.config.allow_cycle
        if self._allowing:  # else there is no cycle
            self._mark_cycle(router.source)

    def remove(self, router_id: int) -> Router | None:
        """The router goes; None when it is not there."""
        self.last_id = max(self.last_id, router_id)
        router = self.by_id.get(router_id)
        if router is not None:
            self._unlink(router)
            del self.by_name[router.name]
            del self._names[bisect_left(self._names, router.name)]
        return router

    def _unlink(self, router: Router) -> None:
        on_cycle = self._component(router.source) if router.id in self.cyclic else set()
        del self.by_id[router.id]
        self._allowing -= router.config.allow_cycle
        for ends, topic in ((self._from, router.source), (self._into, router.dest)):
            del ends[topic][router.id]
            if not ends[topic]:
                del ends[topic]
        self.cyclic.difference_update(each.id for each in self._within(on_cycle))
        self.cyclic.discard(router.id)
        while on_cycle:
            on_cycle -= self._mark_cycle(next(iter(on_cycle)))

    # Cycles

    def _mark_cycle(self, topic: str) -> set[str]:
        """Note the routers on a cycle with ``topic``; the topics of all these cycles."""
        found = self._component(topic)
        if len(found) > 1:
            self.cyclic.update(each.id for each in self._within(found))
        return found

    def _component(self, topic: str) -> set[str]:
        """The topics that can be reached from ``topic`` and that reach it, itself among them."""
        to_there = _reached(topic, self._into, lambda router: router.source)
        return to_there & _reached(topic, self._from, lambda router: router.dest)

    def _within(self, topics: set[str]) -> Iterator[Router]:
        """The routers between these topics."""
        for topic in topics:
            for router in self._from.get(topic, {}).values():
                if router.dest in topics:
                    yield router


def _reached(
    topic: str, ends: Mapping[str, Mapping[int, Router]], end: Callable[[Router], str]
) -> set[str]:
    """The topics that the routers of ``ends`` lead to, step by step, ``topic`` among them."""
    found, line = {topic}, [topic]
    while line:
        for router in ends.get(line.pop(), {}).values():
            if end(router) not in found:
                found.add(end(router))
                line.append(end(router))
    return found


def _path(before: dict[str, str | None], end: str) -> list[str]:
    path, topic = [end], before[end]
    while topic is not None:
        path.append(topic)
        topic = before[topic]
    return path[::-1]
