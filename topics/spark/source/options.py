"""Read options: what is read, from where to where, in which pieces. Every mistake is one line.

The names are Kafka's where the meaning is. A name that is nearly one of ours, or one of Kafka's
that has no meaning here, is refused: Spark itself would silently ignore it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from topics.spark.source.connection import (
    CONNECTION_OPTIONS,
    BadOption,
    Connection,
    flag,
    lowered,
    number,
)
from topics.spark.source.offsets import EARLIEST, LATEST, Bounds

READ_OPTIONS = (
    "subscribe",
    "topic",
    "subscribePattern",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "node",
)
IGNORED = {"includeheaders"}  # the column is always there
NEAR = 0.8
MAX_RECORDS_PER_PARTITION = 500_000
MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000  # Kafka's
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
LITERALS = re.compile(r"(?:\\[.:-]|[A-Za-z0-9_:-])*(?![?*{])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read is asked for. Picklable. Exactly one of ``topics`` and ``pattern`` is set."""

    connection: Connection
    topics: tuple[str, ...]
    pattern: str | None
    starting: Bounds
    ending: Bounds
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int
    max_offsets: int | None
    min_offsets: int
    max_delay_s: float
    node: str | None
    columns: tuple[str, ...]

    @classmethod
    def parse(
        cls, options: Mapping[str, str], kind: Literal["batch", "stream", "either"]
    ) -> ReadOptions:
        """The options of a batch read, of a stream, or of what will turn out to be one of them.
        Raises `BadOption`.
        """
        given = lowered(options)
        connection = Connection.parse(given)
        refuse_unknown(given)
        topics, pattern = _subscription(given)
        read = cls(
            connection=connection,
            topics=topics,
            pattern=pattern,
            starting=_bounds(given, "starting", EARLIEST, LATEST if kind == "stream" else EARLIEST),
            ending=_bounds(given, "ending", LATEST, LATEST),
            fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
            min_partitions=number(given, "minPartitions", 1),
            max_records_per_partition=number(
                given, "maxRecordsPerPartition", MAX_RECORDS_PER_PARTITION
            ),
            max_offsets=number(given, "maxOffsetsPerTrigger", 0, least=1) or None,
            min_offsets=number(given, "minOffsetsPerTrigger", 0),
            max_delay_s=_duration_ms(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS) / 1000,
            node=given.get("node") or None,
            columns=_list(given.get("columns", "")),
        )
        read.check(kind)
        return read

    def check(self, kind: Literal["batch", "stream", "either"]) -> None:
        """Raise `BadOption` for offsets that this kind of read cannot have."""
        if kind == "batch" and LATEST in self.starting.words():
            raise BadOption("startingOffsets of a batch read cannot be latest: it reads nothing")
        if EARLIEST in self.ending.words():
            raise BadOption("endingOffsets cannot be earliest: nothing is before it")
        if kind == "stream" and (self.ending.named or self.ending.by_time):
            raise BadOption(f"a stream has no end: leave out {self.ending.option}")
        if self.max_offsets is not None and self.min_offsets > self.max_offsets:
            raise BadOption("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
        topics = set(self.topics)
        for bounds in (self.starting, self.ending):
            for topic in bounds.named:
                if topic not in topics and not self.wants(topic):
                    raise BadOption(
                        f'option {bounds.option} names topic "{topic}", which is not read'
                    )
        self._check_order()

    def _check_order(self) -> None:
        """Raise `BadOption` for a start above the end of the same topic. An offset and a time
        cannot be compared here: such a topic has no records to read.
        """
        starting, ending = self.starting, self.ending
        if starting.by_time != ending.by_time:
            return
        for topic in sorted({*starting.named, *ending.named}) or [""]:
            for partition in {None, *starting.partitions(topic), *ending.partitions(topic)}:
                first, end = starting.of(topic, partition), ending.of(topic, partition)
                if first > end >= 0:
                    of = f' of topic "{topic}"' if topic else ""
                    raise BadOption(
                        f"{starting.option}{of} is {first}, which is above {ending.option}, {end}"
                    )

    def wants(self, topic: str) -> bool:
        """Whether the pattern has the topic."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    @property
    def prefix(self) -> str:
        """What the names of all wanted topics begin with, as far as the pattern tells."""
        return literal_prefix(self.pattern or "")


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Raise `BadOption` for a name that looks misspelt, or means nothing here."""
    known = {name.lower(): name for name in (*CONNECTION_OPTIONS, *READ_OPTIONS)}
    for name in given:
        if name == "path":
            raise BadOption("option path is not one of topics: name the topic with subscribe")
        if name in known or name in IGNORED:
            continue
        if near := get_close_matches(name, known, n=1, cutoff=NEAR):
            raise BadOption(f"there is no option {name}; is it {known[near[0]]}?")


def literal_prefix(pattern: str) -> str:
    """The longest text that everything the pattern matches surely begins with."""
    if "|" in pattern:
        return ""
    found = LITERALS.match(pattern)
    assert found, "it matches no characters, too"
    return found.group().replace("\\", "")


def _subscription(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    names = [name for name in ("subscribe", "topic", "subscribepattern") if name in given]
    if not names:
        raise BadOption("no topic is named: give the option subscribe, or subscribePattern")
    if len(names) > 1:
        raise BadOption(f"options {' and '.join(names)} are both given; give one of them")
    if names != ["subscribepattern"]:
        return _topics(names[0], given[names[0]]), None
    pattern = given["subscribepattern"]
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadOption(f"option subscribePattern is {pattern!r}: {error}") from None
    return (), pattern


def _topics(option: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(_list(text)))
    if not topics:
        raise BadOption(f"option {option} names no topic")
    for topic in topics:
        if not TOPIC.fullmatch(topic):
            raise BadOption(f"option {option}: {topic!r} is no name of a topic")
    return topics


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _bounds(given: Mapping[str, str], side: str, rest: int, default: int) -> Bounds:
    """Where reads start or end: at ``default``; what a JSON leaves out, at ``rest``."""
    offsets, time, times = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    named = [option for option in (offsets, time, times) if option.lower() in given]
    if len(named) > 1:
        raise BadOption(f"options {' and '.join(named)} are both given; give one of them")
    if not named:
        return Bounds(offsets, default)
    if named == [time]:
        return Bounds(time, number(given, time, 0, least=0), by_time=True)
    (option,) = named
    return Bounds.parse(option, given[option.lower()], rest, by_time=option == times)


def _duration_ms(given: Mapping[str, str], option: str, default: int) -> int:
    text = given.get(option.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h)?", text.strip())
    if found is None:
        raise BadOption(f"option {option} is {text!r}; it is a time as 500ms, 10s, 15m or 1h")
    return int(found.group(1)) * UNITS_MS[found.group(2) or "ms"]
