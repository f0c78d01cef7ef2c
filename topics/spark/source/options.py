"""Read options: parses and checks the options of a read. Each invalid option causes a one-line
error.

Options that have the same meaning in Kafka's source have the same name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from topics.formats.names import TOPIC_NAME
from topics.spark.interface import DEFAULTS
from topics.spark.source.connection import BadOption, Connection, Given
from topics.spark.source.offsets import EARLIEST, LATEST, Bounds, Number

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
Assigned = dict[str, Annotated[list[Number], msgspec.Meta(min_length=1)]]
LITERALS = re.compile(r"(?:\\[.:-]|[A-Za-z0-9_:-])*(?![?*{])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. Picklable. Either ``topics`` or ``pattern`` is set."""

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
    text: bool  # whether values are texts instead of JSON
    assigned: Bounds
    columns: tuple[str, ...]

    @classmethod
    def parse(
        cls, options: Mapping[str, str], kind: Literal["batch", "stream", "either"]
    ) -> ReadOptions:
        """Return the options for a batch read, for a stream, or for either if Spark has not yet
        specified which. Raise `BadOption`.
        """
        given = Given(options)
        connection = Connection.parse(given)
        given.refuse_unknown("read")
        topics, pattern = _subscription(given)
        read = cls(
            connection=connection,
            topics=topics,
            pattern=pattern,
            starting=_bounds(given, "starting", EARLIEST, LATEST if kind == "stream" else EARLIEST),
            ending=_bounds(given, "ending", LATEST, LATEST),
            fail_on_data_loss=given.flag("failOnDataLoss"),
            min_partitions=given.number("minPartitions"),
            max_records_per_partition=given.number("maxRecordsPerPartition"),
            max_offsets=(
                given.number("maxOffsetsPerTrigger") if "maxoffsetspertrigger" in given else None
            ),
            min_offsets=given.number("minOffsetsPerTrigger", least=0),
            max_delay_s=_duration_ms(given, "maxTriggerDelay") / 1000,
            node=given.get("node") or None,
            text=given.choice("valueFormat", ("json", "text")) == "text",
            assigned=_assigned(given),
            columns=_list(given.get("columns", "")),
        )
        read.check(kind)
        return read

    def check(self, kind: Literal["batch", "stream", "either"]) -> None:
        """Raise `BadOption` for offsets that are invalid for this kind of read."""
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
        """Raise `BadOption` if a start is above the end of the same topic. An offset and a time
        cannot be compared here.
        """
        starting, ending = self.starting, self.ending
        if starting.by_time != ending.by_time:
            return
        for topic in sorted({*starting.named, *ending.named}) or [""]:
            for partition in {None, *starting.named.get(topic, ()), *ending.named.get(topic, ())}:
                first, end = starting.of(topic, partition), ending.of(topic, partition)
                if first > end >= 0:
                    of = f' of topic "{topic}"' if topic else ""
                    raise BadOption(
                        f"{starting.option}{of} is {first}, which is above {ending.option}, {end}"
                    )

    def wants(self, topic: str) -> bool:
        """Return whether the pattern matches the complete name of the topic."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None


def literal_prefix(pattern: str) -> str:
    """Return the literal text at the start of a regular expression: a prefix of all matches."""
    if "|" in pattern:
        return ""
    found = LITERALS.match(pattern)
    assert found, "the expression also matches the empty text"
    return found.group().replace("\\", "")


def _subscription(given: Given) -> tuple[tuple[str, ...], str | None]:
    option = given.only_one("subscribe", "topic", "assign", "subscribePattern")
    if option is None:
        raise BadOption("no topic is named: give the option subscribe, or subscribePattern")
    text = given[option.lower()]
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption(f"option subscribePattern is {text!r}: {error}") from None
        return (), text
    topics = tuple(_assigned(given).named) if option == "assign" else _list(text)
    if not topics:
        raise BadOption(f"option {option} names no topic")
    for topic in topics:
        if not TOPIC_NAME.fullmatch(topic):
            raise BadOption(f"option {option}: {topic!r} is no name of a topic")
    return tuple(dict.fromkeys(topics)), None


def _assigned(given: Given) -> Bounds:
    """Return the topics and partitions in the option ``assign``, each from its earliest record."""
    text = given.get("assign", "{}")
    try:
        topics = msgspec.json.decode(text, type=Assigned)
    except (msgspec.DecodeError, UnicodeError):
        raise BadOption(
            f'option assign is {text[:200]!r}; it is JSON as {{"TOPIC": [0]}}'
        ) from None
    named: dict[str, Mapping[int | None, int]] = {
        topic: dict.fromkeys(numbers, EARLIEST) for topic, numbers in topics.items()
    }
    return Bounds("assign", EARLIEST, named)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _bounds(given: Given, side: str, rest: int, default: int) -> Bounds:
    """Return the start or the end of the read: ``default`` if no option is given, and ``rest`` for
    topics that a JSON option does not contain.
    """
    offsets, time, times = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    option = given.only_one(offsets, time, times)
    if option is None:
        return Bounds(offsets, default)
    if option == time:
        return Bounds(time, given.number(time, least=0), by_time=True)
    return Bounds.parse(option, given[option.lower()], rest, by_time=option == times)


def _duration_ms(given: Given, option: str) -> int:
    text = given.get(option.lower(), DEFAULTS[option])
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|h)?", text.strip())
    if found is None:
        raise BadOption(f"option {option} is {text!r}; it is a time as 500ms, 10s, 15m or 1h")
    return int(found.group(1)) * UNITS_MS[found.group(2) or "ms"]
