"""Offsets: as users write them, and as checkpoints keep them. Users' offsets become seqs here only.

    option          {"orders": 42} or {"orders": {"0": 42}}, -2 earliest, -1 latest; a start is the
                    first offset that is read, an end is the first that is not (as Kafka's are)
    checkpoint      {"SERVER": {"TOPIC": {"seq": 41, "epoch": 7, "lost": 0, "head": 50,
                    "head_ts": 1700000000000}}}; seq is the last that was read, so the next range is
                    (41, ...] as ``from_seq`` is (§3); the head and its `$ts` are left out where
                    they are not known

The inner key of an option is the server's number among the names (`Servers.index`), which is the
column ``partition``. A checkpoint has the server's name: numbers change when a server is added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from topics.spark.source.connection import BadOption

EARLIEST, LATEST = -2, -1
WORDS = {"earliest": EARLIEST, "latest": LATEST}


class Position(NamedTuple):
    """Where a stream stands in a topic: ``seq`` is the last one read of the incarnation ``epoch``;
    about ``lost`` records were gone before they could be read. ``head`` is the topic's last seq as
    of the batch that ended here and ``head_ts`` its `$ts`, by which a log that was restored from a
    backup is told from the one that was read; 0 where they are not known.
    """

    seq: int
    epoch: int
    lost: int = 0
    head: int = 0
    head_ts: int = 0


# By the server's name, then by topic.
Offsets = dict[str, dict[str, Position]]


class BadOffset(ValueError):
    """A checkpoint that this source has not written. The text is one line for people."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where reads begin, or where they end. ``named``: by topic, then by partition or None for
    any; ``default`` is for topics that are not named.
    """

    option: str
    default: int
    named: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, option: str, text: str, default: int) -> Bounds:
        """``earliest``, ``latest`` or JSON. Raises `BadOption`."""
        word = text.strip().lower()
        if word in WORDS:
            return cls(option, WORDS[word])
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError):
            value = None
        if not isinstance(value, dict) or not value:
            raise _bad(option, text)
        return cls(option, default, {t: _by_partition(option, text, v) for t, v in value.items()})

    def of(self, topic: str, partition: int) -> int:
        """The user's offset, or `EARLIEST` or `LATEST`."""
        found = self.named.get(topic, {})
        return found.get(partition, found.get(None, self.default))

    def check(self, topic: str, places: Collection[int]) -> None:
        """Raise `BadOption` for a partition that the topic, which lies at these, does not have."""
        for partition in self.named.get(topic, {}):
            if partition is not None and partition not in places:
                held = " and ".join(map(str, sorted(places)))
                raise BadOption(
                    f'option {self.option} names partition {partition} of topic "{topic}", which is'
                    f' partition {held} of these servers: write that, or {{"{topic}": OFFSET}}'
                )

    def words(self) -> set[int]:
        """Which of `EARLIEST` and `LATEST` somebody asks for."""
        values = {value for found in self.named.values() for value in found.values()}
        return {self.default, *values} & {EARLIEST, LATEST} if self.named else {self.default}


def after_of(start: int) -> int:
    """The seq before the first that is read: the exclusive start of a range."""
    return max(0, start - 1)


def last_of(end: int) -> int:
    """The last seq that is read: the inclusive end of a range."""
    return max(0, end - 1)


def offset_after(seq: int) -> int:
    """The user's offset that follows a seq, for messages."""
    return seq + 1


def encode(offsets: Offsets) -> dict[str, Any]:
    """For the checkpoint: equal offsets are equal texts."""
    return {
        server: {topic: _fields(topics[topic]) for topic in sorted(topics)}
        for server, topics in sorted(offsets.items())
    }


def decode(value: Mapping[str, Any]) -> Offsets:
    """From the checkpoint. Raises `BadOffset`."""
    try:
        return {
            server: {topic: _position(at) for topic, at in topics.items()}
            for server, topics in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadOffset(
            f"the checkpoint holds an offset of another source: {str(value)[:200]}; use another"
            " checkpointLocation"
        ) from None


def _fields(at: Position) -> dict[str, int]:
    found = at._asdict()
    if not at.head:  # as it was before there was one: what does not move is the same offset
        del found["head"], found["head_ts"]
    return found


def _position(at: Mapping[str, Any]) -> Position:
    found = Position(
        at["seq"], at["epoch"], at.get("lost", 0), at.get("head", 0), at.get("head_ts", 0)
    )
    if not all(type(number) is int and number >= 0 for number in found):
        raise ValueError(found)
    return found


def _by_partition(option: str, text: str, value: object) -> dict[int | None, int]:
    if isinstance(value, dict) and value and all(key.isdecimal() for key in value):
        return {int(key): _offset(option, text, offset) for key, offset in value.items()}
    return {None: _offset(option, text, value)}


def _offset(option: str, text: str, value: object) -> int:
    if type(value) is not int or value < EARLIEST:
        raise _bad(option, text)
    return value


def _bad(option: str, text: str) -> BadOption:
    return BadOption(
        f"option {option} is {text[:200]!r}; it is earliest, latest or JSON as"
        ' {"TOPIC": 42} or {"TOPIC": {"0": 42}}, where -2 is earliest and -1 is latest'
    )
