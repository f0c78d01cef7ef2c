"""Offsets in options and in checkpoints. Only this module converts offsets in options to seqs.

    option          {"orders": 42} or {"orders": {"0": 42}}, -2 earliest, -1 latest; a start is the
                    first offset that is read, an end is the first offset that is not read (as in
                    Kafka)
    checkpoint      {"SERVER": {"TOPIC": [41, 7, 0, 50, 1700000000000]}}, the fields of `Position`;
                    seq is the last seq that was read, so the next range is (41, ...] like
                    ``from_seq`` (§3)

The inner key in an option is the index of the server's name among the sorted names
(`Servers.index`). It is the value of the column ``partition``. A checkpoint contains the server's
name, because the numbers change if a server is added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec

from topics.spark.client.servers import without_user_info
from topics.spark.source.connection import BadOption

EARLIEST, LATEST = -2, -1
WORDS = {"earliest": EARLIEST, "latest": LATEST}
Number = Annotated[int, msgspec.Meta(ge=0)]
At = Annotated[int, msgspec.Meta(ge=EARLIEST)]
SOME = msgspec.Meta(min_length=1)
Named = Annotated[dict[str, At | Annotated[dict[Number, At], SOME]], SOME]


class Position(NamedTuple):
    """The position of a stream in a topic: ``seq`` is the last seq that was read in the incarnation
    ``epoch``. About ``lost`` records were lost before they were read. ``head`` was the topic's last
    seq when the batch was planned, and ``head_ts`` its `$ts`. They show later whether the log was
    restored from a backup. They are 0 if they are not known.
    """

    seq: Number
    epoch: Number
    lost: Number = 0
    head: Number = 0
    head_ts: Number = 0


# The positions by server name, then by topic.
Offsets = dict[str, dict[str, Position]]


class BadOffset(ValueError):
    """The checkpoint was written by a different source. The text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The start or the end of a read. ``named`` contains it by topic and partition; the partition
    None means any partition. ``default`` is for the other topics. With ``by_time``, a value that is
    not negative is a time in ms since 1970 instead of an offset.
    """

    option: str
    default: int
    named: Mapping[str, Mapping[int | None, int]] = field(default_factory=dict)
    by_time: bool = False

    @classmethod
    def parse(cls, option: str, text: str, default: int, *, by_time: bool = False) -> Bounds:
        """Parse ``earliest``, ``latest`` or JSON. Raise `BadOption`."""
        word = text.strip().lower()
        if word in WORDS:
            return cls(option, WORDS[word])
        try:
            value: dict[str, Any] = msgspec.json.decode(text, type=Named)
        except (msgspec.DecodeError, UnicodeError):
            raise BadOption(
                f"option {option} is {text[:200]!r}; it is earliest, latest or JSON as"
                ' {"TOPIC": 42} or {"TOPIC": {"0": 42}}, where -2 is earliest and -1 is latest'
            ) from None
        named: dict[str, Mapping[int | None, int]] = {
            topic: at if isinstance(at, dict) else {None: at} for topic, at in value.items()
        }
        return cls(option, default, named, by_time)

    def of(self, topic: str, partition: int | None) -> int:
        """Return the user's offset or time, or `EARLIEST` or `LATEST`."""
        found = self.named.get(topic, {})
        return found.get(partition, found.get(None, self.default))

    def check(self, topic: str, existing: Collection[int]) -> None:
        """Raise `BadOption` for a partition that is not in ``existing``, the topic's partitions."""
        for partition in self.named.get(topic, {}):
            if partition is not None and partition not in existing:
                held = " and ".join(map(str, sorted(existing)))
                raise BadOption(
                    f'option {self.option} names partition {partition} of topic "{topic}", which is'
                    f" partition {held} of these servers"
                )

    def words(self) -> set[int]:
        """Return which of `EARLIEST` and `LATEST` the option contains."""
        values = {value for found in self.named.values() for value in found.values()}
        return {self.default, *values} & {EARLIEST, LATEST} if self.named else {self.default}


def seq_before(offset: int) -> int:
    """Return the seq before an offset: the exclusive start or inclusive end of a range."""
    return max(0, offset - 1)


def encode(offsets: Offsets) -> dict[str, Any]:
    """Encode offsets for the checkpoint. Equal offsets have the same text."""
    return {server: dict(sorted(topics.items())) for server, topics in sorted(offsets.items())}


def decode(value: Mapping[str, Any]) -> Offsets:
    """Return the offsets in a checkpoint. Raise `BadOffset`.

    The user info of an address, which earlier versions wrote into the server's name, is removed.
    """
    try:
        found = msgspec.convert(value, Offsets)
        return {without_user_info(server): topics for server, topics in found.items()}
    except msgspec.ValidationError:
        raise BadOffset(
            f"the checkpoint has an offset of another source: {str(value)[:200]}; use another"
            " checkpointLocation"
        ) from None
