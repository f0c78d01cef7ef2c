"""Graph of routers: all routers of the server, in the shard that owns them (§6).

A router is an edge from its source to its dest. All routers into a dest have the same source. A
router may close a cycle only if it allows that. Then the number of hops of the records on the cycle
is bounded.

Each incarnation of a router has an id. A router that gets another source or dest is a new
incarnation of its name. Ids are ascending and are never reused.
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
    """One incarnation of a router.

    ``base_total`` is the number of records that earlier incarnations of the name have forwarded.
    """

    id: int
    name: str
    config: RouterConfig
    source_id: int
    source_epoch: int
    dest_id: int
    start_seq: int  # head of the source when the router was created; later records are forwarded
    base_total: int = 0

    @property
    def source(self) -> str:
        """Return the name of the topic whose records are forwarded."""
        return self.config.source

    @property
    def dest(self) -> str:
        """Return the name of the topic that gets the copies."""
        return self.config.dest

    @cached_property
    def packed(self) -> bytes:
        """Return the encoding of the router in logs and checkpoints."""
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
        """Return the router that ``packed`` encodes."""
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
    """The routers by name, by id and by topic.

    ``last_id`` is the highest id that has ever been used. ``cyclic`` contains the ids of the
    routers on cycles.
    """

    def __init__(self) -> None:
        self.cyclic: set[int] = set()
        self.by_name: dict[str, Router] = {}
        self.by_id: dict[int, Router] = {}
        self.last_id = 0
        self._names: list[str] = []  # sorted
        self._allowing = 0  # number of routers that allow a cycle
        # By topic: the routers that have it as their source, and the routers that have it as their
        # dest.
        self._from: dict[str, dict[int, Router]] = {}
        self._into: dict[str, dict[int, Router]] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    # Queries

    def router(self, name: str) -> Router:
        """Return the router of that name. Raise `RouterNotFound` if there is none."""
        found = self.by_name.get(name)
        if found is None:
            raise RouterNotFound(name)
        return found

    def names(self, prefix: str, after: str | None) -> Iterator[str]:
        """Yield the router names that start with ``prefix`` and are above ``after``, in ascending
        order.
        """
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
        """Yield the routers of `names` that have this source and this dest, if given."""
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
        """Return the routers that have the topic as source or dest, in ascending order of ids."""
        found = {**self._from.get(topic, {}), **self._into.get(topic, {})}
        return [found[router_id] for router_id in sorted(found)]

    def check(self, name: str, config: RouterConfig) -> None:
        """Check that the router ``name`` may get this config.

        Raise `TopicExistsIncompatible` if its dest has another source, or `RouterCycle` if it would
        close a cycle and does not allow cycles. Properties that the router already has are not
        checked again.
        """
        now = self.by_name.get(name)
        is_moved = now is None or (now.source, now.dest) != (config.source, config.dest)
        if is_moved:
            self._check_fan_in(name, config)
        if not config.allow_cycle and (now is None or is_moved or now.config.allow_cycle):
            path = self._shortest_path(config.dest, config.source, name)
            if path is not None:
                raise RouterCycle([config.source, *path])

    def _check_fan_in(self, name: str, config: RouterConfig) -> None:
        """Raise `TopicExistsIncompatible` if another router appends to the dest from a different
        source.
        """
        for other in self._into.get(config.dest, {}).values():
            if other.name != name and other.source != config.source:
                raise TopicExistsIncompatible(
                    f'topic "{other.dest}" already has a different source, and may have only one',
                    reason=FAN_IN,
                    topic=other.dest,
                )

    def _shortest_path(self, start: str, end: str, without: str) -> list[str] | None:
        """Return the shortest path along routers from one topic to another, including both.

        Return None if there is no path. The router ``without`` is ignored.
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

    # Changes

    def put(self, router: Router) -> None:
        """Add the router, or replace the earlier incarnation of its name.

        Do nothing if the graph has a later incarnation. A replay may apply old frames.
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
        if self._allowing:  # otherwise no router can be on a cycle
            self._mark_cycle(router.source)

    def remove(self, router_id: int) -> Router | None:
        """Remove and return the router. Return None if it does not exist."""
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
        # Mark the remaining cycles again.
        while on_cycle:
            on_cycle -= self._mark_cycle(next(iter(on_cycle)))

    # Cycles

    def _mark_cycle(self, topic: str) -> set[str]:
        """Mark the routers on cycles through ``topic``. Return the topics of all these cycles."""
        found = self._component(topic)
        if len(found) > 1:
            self.cyclic.update(each.id for each in self._within(found))
        return found

    def _component(self, topic: str) -> set[str]:
        """Return the strongly connected component of ``topic``.

        These are the topics that are reachable from ``topic`` and from which ``topic`` is
        reachable, including ``topic`` itself.
        """
        to_there = _reached(topic, self._into, lambda router: router.source)
        return to_there & _reached(topic, self._from, lambda router: router.dest)

    def _within(self, topics: set[str]) -> Iterator[Router]:
        """Yield the routers whose source and dest are both among these topics."""
        for topic in topics:
            for router in self._from.get(topic, {}).values():
                if router.dest in topics:
                    yield router


def _reached(
    topic: str, ends: Mapping[str, Mapping[int, Router]], end: Callable[[Router], str]
) -> set[str]:
    """Return the topics that are reachable from ``topic`` along ``ends``, including ``topic``.

    ``ends`` has the routers of each topic, and ``end`` returns the topic to which a router leads.
    """
    found, line = {topic}, [topic]
    while line:
        for router in ends.get(line.pop(), {}).values():
            if end(router) not in found:
                found.add(end(router))
                line.append(end(router))
    return found


def _path(before: dict[str, str | None], end: str) -> list[str]:
    """Return the path to ``end``, by following the predecessors in ``before``."""
    path, topic = [end], before[end]
    while topic is not None:
        path.append(topic)
        topic = before[topic]
    return path[::-1]
