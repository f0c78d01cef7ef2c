"""The topics and routers of the campaign `routers`, as tables.

    chain.a -> chain.b -> chain.c -> chain.d     from shard to shard and back
    fan -> fan.1 ... fan.20                      all classes, both shards; one is filtered, one is
                                                 exactly_once, some drop node or tag
    flow -> gate                                 the dest is small and rejects
    short -> short.copy                          the source has a small cap and evicts
    long -> long.capped, long.brief              a dest with a cap, one with an age
    cut -> cut.copy                              records of the source are deleted
    flash -> flash.copy                          the source is ephemeral

Each topic has a name that belongs to the shard that the table wants.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topics.formats.names import shard_of

SHARDS = 2
GATE_CAP = 40
SHORT_CAP = 10
CAPPED_CAP = 60
BRIEF_TTL_MS = 2500
FAN_CLASSES = ("disk", "fsync", "memory", "disk", "fsync", "memory", "ephemeral")
FAN_WIDTH = 20
TAGS = ("red:1", "red:2", "blue", None)
FILTER = ["tag", "Glob", "red:*"]
# What a tombstone of a dest may say.
TRIM = frozenset({"source_trim"})
CAP = frozenset({"cap"})
TTL = frozenset({"ttl"})
ANYTHING = TRIM | CAP | TTL | {"mixed"}


class Dest(NamedTuple):
    """A topic that a router feeds, and what is promised of it."""

    name: str
    feeder: str  # the source of its router
    root: str  # where its records were appended
    config: dict[str, Any]
    router: str
    asked: dict[str, Any]  # of the router, besides source and dest
    reasons: frozenset[str] = frozenset()  # of tombstones

    @property
    def is_kept(self) -> bool:
        """Whether a kill takes nothing of it."""
        return bool(self.config.get("durability", "disk") != "ephemeral")

    @property
    def is_complete(self) -> bool:
        """Whether every copy can be read in the end, or was read before it was deleted."""
        return self.is_kept and self.reasons <= TRIM

    @property
    def is_filtered(self) -> bool:
        return "filter" in self.asked

    @property
    def is_stamped(self) -> bool:
        return self.asked.get("guarantee") == "exactly_once"

    @property
    def shard(self) -> int:
        return shard_of(self.name, SHARDS)

    def takes(self, tag: str | None) -> bool:
        """Whether a record with this tag passes the filter."""
        return not self.is_filtered or (tag is not None and tag.startswith("red:"))


class Topology(NamedTuple):
    """``sources``: those that writers append to, each with its config. ``gates``: dests whose
    records are deleted to let more in. ``lossy``: sources of which records may be gone before they
    are forwarded. ``cut``: the source whose records are deleted.
    """

    sources: dict[str, dict[str, Any]]
    dests: dict[str, Dest]
    gates: frozenset[str]
    lossy: frozenset[str]
    cut: str


def named(base: str, shard: int) -> str:
    """A name that belongs to the shard."""
    names = (f"{base}{'x' * number}" for number in range(100))
    return next(name for name in names if shard_of(name, SHARDS) == shard)


def topology() -> Topology:
    """The whole, the same every time."""
    sources: dict[str, dict[str, Any]] = {
        named("chain.a", 0): {"durability": "disk"},
        named("fan", 0): {"durability": "fsync"},
        named("flow", 1): {"durability": "disk"},
        named("short", 1): {"durability": "disk", "cap_records": SHORT_CAP},
        named("long", 0): {"durability": "memory"},
        named("cut", 1): {"durability": "disk"},
        named("flash", 1): {"durability": "ephemeral"},
    }
    chain, fan, flow, short, long, cut, flash = sources
    dests = [
        *_chain(chain),
        *_fan(fan),
        _dest("gate", 0, flow, durability="disk", cap_records=GATE_CAP, discard="reject"),
        _dest("short.copy", 0, short, durability="disk")._replace(reasons=TRIM),
        _dest("short.near", 1, short, durability="fsync")._replace(reasons=TRIM),
        _dest("long.capped", 1, long, cap_records=CAPPED_CAP)._replace(reasons=CAP),
        _dest("long.brief", 0, long, ttl_ms=BRIEF_TTL_MS)._replace(reasons=TTL),
        _dest("cut.copy", 0, cut, durability="disk"),
        _dest("flash.copy", 0, flash, durability="disk")._replace(
            asked={"guarantee": "exactly_once"}, reasons=TRIM
        ),
    ]
    return Topology(
        sources,
        {dest.name: dest for dest in dests},
        frozenset({named("gate", 0)}),
        frozenset({short, flash}),
        cut,
    )


def _dest(base: str, shard: int, feeder: str, root: str = "", **config: Any) -> Dest:
    name = named(base, shard)
    return Dest(name, feeder, root or feeder, config, f"{feeder}->{name}", {})


def _chain(root: str) -> list[Dest]:
    dests: list[Dest] = []
    for number, (letter, durability) in enumerate((("b", "disk"), ("c", "fsync"), ("d", "disk"))):
        feeder = dests[-1].name if dests else root
        dests.append(_dest(f"chain.{letter}", 1 - number % 2, feeder, root, durability=durability))
    return dests


def _fan(root: str) -> list[Dest]:
    dests = []
    for number in range(1, FAN_WIDTH + 1):
        durability = FAN_CLASSES[number % len(FAN_CLASSES)]
        dest = _dest(f"fan.{number}", number % 2, root, durability=durability)
        if durability == "ephemeral":
            dest = dest._replace(reasons=ANYTHING)
        dests.append(dest)
    dests[3] = dests[3]._replace(asked={"guarantee": "exactly_once"})
    dests[4] = dests[4]._replace(asked={"guarantee": "exactly_once"})
    dests[6] = dests[6]._replace(asked={"filter": FILTER})
    dests[7] = dests[7]._replace(asked={"filter": FILTER, "guarantee": "exactly_once"})
    dests[8] = dests[8]._replace(asked={"preserve_node": False})
    dests[9] = dests[9]._replace(asked={"preserve_tag": False, "preserve_node": False})
    dests[-1] = dests[-1]._replace(config={})  # made by its router
    return dests
