"""The state of all topics as lists and dicts, built for the judge from a history of calls.

The model reads the complete history before it decides anything. It separates facts from
possibilities. A call with a response happened between ``began`` and ``ended``. A call without a
response may have happened between ``began`` and `Model.until`, or never. If a response does not
contain the epoch of its topic, `Model.epoch_at` determines it only if the topic cannot have
been deleted between this response and one that contains the epoch.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.simulation.history import Call, Entry, ServerEvent, StreamEvent
from tests.support.model import matches
from tests.support.topic_configs import DEFAULTS as TOPIC_DEFAULTS
from topics.formats.names import shard_of

NEVER = 1 << 60
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"
NOTHING_DONE = ("disk_full", "read_only", "timeout")  # reasons of 503 that guarantee this
UNKNOWN_S = 120.0  # an abandoned request may be in progress for this time
EXIT_S = 2.0  # a crash may happen up to this time after it was recorded
DEAD_S = 1.0  # and up to this time before
SYNC_S = 0.2  # acknowledged records of class disk are synced by then
SLACK_S = 0.5
SYNCED_S = 5.0  # records that a fault has delayed are synced by then
DEADLY = ("kill", "power", "stop", "start", "fault", "repaired", "damaged")
# Fields of a config, without the alias of its durability.
DEFAULTS = {name: value for name, value in TOPIC_DEFAULTS.items() if name != "durable"}
CLAMPS = {"lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5000), "priority": (-1000, 1000)}
Origin = tuple[str, int, int]  # by, n, i


class Route(NamedTuple):
    """The target of a call. ``kind`` is the method and the resource."""

    kind: str
    name: str = ""
    query: Mapping[str, list[str]] = MappingProxyType({})


def route_of(call: Call) -> Route:
    """Return the route of a call. Paths with several suffixes have the kind of their suffix."""
    return _route(call.method, call.path)


@cache
def _route(method: str, path: str) -> Route:
    parts = urlsplit(path)
    query = parse_qs(parts.query)
    steps = [unquote(step) for step in parts.path.strip("/").split("/")]
    if steps[0] != "v0" or len(steps) < 2:
        return Route(f"{method} {parts.path}", "", query)
    what, name, tail = (*steps[1:], "", "")[:3]
    if what in ("topics", "routers", "watch") and name:
        return Route(f"{method} {what}/x{'/' + tail if tail else ''}", name, query)
    return Route(f"{method} {what}", "", query)


def fate_of(call: Call) -> str:
    """Return whether the request was executed. For 503 it is unknown, because the shard may have
    crashed.
    """
    if call.status is None or call.status >= 500:
        error = call.answer.get("error", {}) if isinstance(call.answer, dict) else {}
        reason = error.get("detail", {}).get("reason")
        return REFUSED if call.status == 503 and reason in NOTHING_DONE else UNKNOWN
    return DONE if call.status < 300 else REFUSED


class Written(NamedTuple):
    """A value that was set between two moments, or that may have been set."""

    began: int
    until: int
    is_certain: bool
    value: Any


class Register:
    """One field of a config over time."""

    def __init__(self, value: Any) -> None:
        self.writes = [Written(-2, -1, True, value)]

    def write(self, began: int, until: int, is_certain: bool, value: Any) -> None:
        self.writes.append(Written(began, until, is_certain, value))

    def possible(self, first: int, last: int) -> set[Any]:
        """Return every value that the field may have had at a moment from ``first`` to ``last``."""
        over = max(one.began for one in self.writes if one.is_certain and one.until < first)
        return {one.value for one in self.writes if one.began <= last and one.until >= over}


@dataclass(slots=True)
class Append:
    """A write and the known facts about it. ``seqs`` is empty until a response is received."""

    call: Call
    topic: str
    records: list[dict[str, Any]]
    key: str | None
    fate: str
    seqs: range = range(0)
    epoch: int | None = None


@dataclass(slots=True)
class Known:
    """A record that exists or existed.

    ``born``: the record did not exist before this moment. ``acked``, ``seen``: the first moments at
    which a client received the ack or the content of the record.
    """

    seq: int
    origin: Origin | None = None
    record: dict[str, Any] = field(default_factory=dict)  # as first returned to a reader
    tag: str | None = None
    is_tag_known: bool = False
    born: int = 0
    born_at: float = 0.0
    acked: int = NEVER
    acked_at: float = 0.0
    seen: int = NEVER
    entry: int = 0  # the entry that reports it
    removable_from: int = NEVER  # the first moment at which something may have removed it
    removed: int = NEVER  # the first moment at which something has removed it
    remover: int = 0

    @property
    def since(self) -> int:
        """Return the first moment at which the record is known to exist."""
        return min(self.acked, self.seen)


@dataclass(slots=True)
class Reading:
    """The records of a topic that one client received: all visible ones of (``low``, ``high``]."""

    topic: str
    epoch: int | None
    client: str
    entry: int
    began: int
    ended: int
    at: float
    low: int
    high: int
    head: int
    records: list[dict[str, Any]]
    gap: dict[str, Any] | None = None
    nodes: frozenset[str] = frozenset()
    has_tags: bool = False
    has_data: bool = True
    has_meta: bool = True
    is_live: bool = False  # it may have been read long before it was received

    @property
    def seqs(self) -> set[int]:
        return {record["$seq"] for record in self.records}


@dataclass(slots=True)
class Delivery:
    """A job that was leased to a client. ``stream``: it was delivered by a work stream."""

    seq: int
    node: str
    lease_id: str
    count: int
    entry: int
    began: int
    ended: int
    began_at: float
    ended_at: float
    lease_ms: set[int]
    stream: int = 0


@dataclass(slots=True)
class Settle:
    """An ack, nack or extend of jobs. ``done``: the seqs that it has certainly settled."""

    call: Call
    what: str
    node: str
    seqs: list[int]
    lease_ids: list[str]
    fate: str
    done: set[int]
    until: int


class Removal(NamedTuple):
    """A delete of records, or a redrive from their topic."""

    call: Call
    before_seq: int | None
    match: Any
    fate: str
    until: int

    def fits(self, seq: int, tag: str | None, is_tag_known: bool = True) -> bool:
        """Return whether the request selects a record with this seq and tag.

        If the tag is unknown, return whether the request may select the record.
        """
        if self.before_seq is not None and seq >= self.before_seq:
            return False
        return self.match is None or not is_tag_known or matches(self.match, tag)


class Death(NamedTuple):
    """An event after which shards have lost their memory, and possibly data on the disk.

    If ``shard`` is None, the event affects all shards.
    """

    number: int
    until: int
    at: float
    what: str
    shard: int | None
    window_s: float  # of a power loss: records acknowledged within this time may be lost
    noted: int  # the entry of the history


@dataclass(slots=True)
class Incarnation:
    """The lifetime of a topic from one creation to the next."""

    topic: str
    epoch: int
    records: dict[int, Known] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    deliveries: dict[int, list[Delivery]] = field(default_factory=lambda: defaultdict(list))

    ordered: list[int] = field(default_factory=list)  # sorted seqs; set when all are collected

    def known(self, seq: int) -> Known:
        return self.records.setdefault(seq, Known(seq))

    def between(self, first: int, last: int) -> Iterator[Known]:
        """Return the records from ``first`` to ``last``. Call this after all are collected."""
        self.ordered = self.ordered or sorted(self.records)
        for index in range(bisect_left(self.ordered, first), bisect_right(self.ordered, last)):
            yield self.records[self.ordered[index]]


class Topic:
    """All calls for one topic name."""

    def __init__(self, name: str, shard: int) -> None:
        self.name, self.shard = name, shard
        self.settings = {name: Register(value) for name, value in DEFAULTS.items()}
        self.appends: list[Append] = []
        self.deletes: list[tuple[int, int, Call]] = []  # deletes of the topic: from, until, call
        # while a refused delete waits for the log, the topic does not exist
        self.refused_deletes: list[Call] = []
        self.certain: list[tuple[int, int, Call]] = []  # calls that prove that it exists
        self.observed: list[tuple[int, int, int]] = []  # (began, ended, epoch)
        self.removals: list[Removal] = []
        self.redrives: list[Removal] = []
        self.settles: list[Settle] = []
        self.claims: list[Call] = []
        self.epochs: dict[int, Incarnation] = {}
        self.makers: list[int] = []  # moments of calls that may create it
        self.states: list[Call] = []
        self.unsure = NEVER  # from this moment on unknown jobs may have been delivered
        self.unplaced: set[str] = set()  # nodes that received jobs of an unknown epoch

    @property
    def first(self) -> int:
        """Return the moment by which the topic exists, if it ever existed."""
        return min((ended for _, ended, _ in self.certain), default=0)

    def may(self, name: str, first: int = 0, last: int = NEVER) -> set[Any]:
        """Return the values that a setting may have had."""
        return self.settings[name].possible(first, last)

    def ever(self, name: str) -> bool:
        """Return whether a setting was ever set."""
        return any(self.may(name))

    def may_be_deleted(self, first: int, last: int) -> bool:
        """Return whether the topic may have been deleted between two moments."""
        return any(began <= last and until >= first for began, until, _ in self.deletes)


class RouterWrite(NamedTuple):
    """A PUT or DELETE of a router. ``config`` is None for a DELETE."""

    call: Call
    fate: str
    config: dict[str, Any] | None

    @property
    def source(self) -> str:
        return self.config["source"] if self.config else ""

    @property
    def dest(self) -> str:
        return self.config["dest"] if self.config else ""


class Model:
    """The history, sorted by topic."""

    def __init__(self, history: Sequence[Entry], shards: int) -> None:
        self.history, self.shards = history, shards
        self.topics: dict[str, Topic] = {}
        self.appends: dict[tuple[str, int], list[Append]] = defaultdict(list)
        self.routers: dict[str, list[RouterWrite]] = defaultdict(list)
        self.calls = [entry for entry in history if isinstance(entry, Call)]
        self.stream_events: dict[int, list[StreamEvent]] = defaultdict(list)
        self.server_events = [entry for entry in history if isinstance(entry, ServerEvent)]
        self._index_moments()
        self.quiet = next((one.number for one in self.server_events if one.what == "quiet"), NEVER)
        self.keys = {(one.who, one.how): one for one in self.server_events if one.what == "key"}
        self.jumps = [one for one in self.server_events if one.what == "clock"]
        self.deaths = list(self._deaths())
        self.front_deaths = [
            one.number
            for one in self.server_events
            if one.what in ("power", "stop")
            or (one.what == "kill" and not one.who.startswith("shard"))
        ]
        for entry in history:
            if isinstance(entry, StreamEvent):
                self.stream_events[entry.call].append(entry)
        for call in self.calls:
            self._sort(call)
        for topic in list(self.topics.values()):
            topic.observed.sort()

    # Moments

    def _index_moments(self) -> None:
        moments = [(call.began, call.at) for call in self.calls]
        moments += [(call.ended, call.ended_at) for call in self.calls if call.ended]
        moments += [(one.number, one.at) for one in self.history if not isinstance(one, Call)]
        moments.sort()
        self._numbers = [number for number, _ in moments]
        self._ats: list[float] = [*accumulate((at for _, at in moments), max)]
        self.last = self._numbers[-1]

    def number_at(self, at: float) -> int:
        """Return the last moment that is not later than ``at``."""
        index = bisect_right(self._ats, at)
        return self._numbers[index - 1] if index else 0

    def at(self, number: int) -> float:
        """Return the time of a moment in seconds."""
        index = bisect_left(self._numbers, number)
        return self._ats[min(index, len(self._ats) - 1)]

    def until(self, call: Call) -> int:
        """Return the last moment at which the request of the call may be executed."""
        if fate_of(call) != UNKNOWN:
            return call.ended
        ended_at = call.ended_at if call.ended else self.at(self.last)
        return self.number_at(ended_at + UNKNOWN_S)

    # Events of the server

    def _deaths(self) -> Iterator[Death]:
        is_slow_until: dict[str, float] = {}  # by process whose disk is slow
        for one in self.server_events:
            if one.what == "fault":
                is_slow_until[one.who] = NEVER
            elif one.what == "repaired":  # delayed records are synced soon after
                for who in [who for who in is_slow_until if one.who in ("", who)]:
                    is_slow_until[who] = one.at + SYNCED_S
            is_front = one.what == "kill" and one.who.startswith("front")
            if is_front or one.what not in DEADLY:
                continue
            found = re.search(r"shard.?(\d+)", one.who)
            shard = int(found.group(1)) if found and one.what not in ("power", "stop") else None
            until = max(self.number_at(one.at + EXIT_S), one.number)
            what = "lost" if "lost" in one.how else one.what
            is_slow = any(at >= one.at for at in is_slow_until.values())
            window_s = NEVER if is_slow else SYNC_S + SLACK_S
            yield Death(
                self.number_at(one.at - DEAD_S), until, one.at, what, shard, window_s, one.number
            )

    def deaths_of(self, topic: Topic, first: int, last: int) -> Iterator[Death]:
        """Return the crashes that may have affected the topic's shard between two moments."""
        for death in self.deaths:
            if death.shard in (None, topic.shard) and death.number <= last and death.until >= first:
                yield death

    def may_lose(self, topic: Topic, known: Known, last: int) -> bool:
        """Return whether its durability class, or damage, permits that the record is lost by
        then.
        """
        classes = topic.may("durability", known.born, last)
        for death in self.deaths_of(topic, known.born, last):
            if known.since > death.until:
                continue
            if "ephemeral" in classes or death.what in ("damaged", "lost"):
                return True
            # the record was returned to readers but acknowledged to no client
            if known.acked > death.until:
                return True
            if death.what == "power" and (
                "memory" in classes
                or ("disk" in classes and known.acked_at >= death.at - death.window_s)
            ):
                return True
        return False

    def may_undo(self, topic: Topic, first: int, last: int) -> bool:
        """Return whether a change of the topic that began at ``first`` may be undone by
        ``last``.
        """
        strong = topic.may("durability", first, last) == {"fsync"}
        return any(
            death.what in ("damaged", "lost") or (death.what == "power" and not strong)
            for death in self.deaths_of(topic, first, last)
        )

    def jumped_s(self) -> float:
        """Return the possible offset between the wall clock and the monotonic clock in seconds."""
        return sum(abs(one.value) for one in self.jumps)

    # Topics

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            self.topics[name] = Topic(name, shard_of(name, self.shards))
        return self.topics[name]

    def exists(self, name: str, first: int, last: int) -> Call | None:
        """Return a call that proves that the topic existed from before ``first`` until ``last``."""
        topic = self.topics.get(name)
        if topic is None:
            return None
        before = [one for one in topic.certain if one[1] < first]
        if not before:
            return None
        began, _, call = max(before, key=lambda one: one[:2])
        if topic.may_be_deleted(began, last):
            return None
        if any(death.what != "kill" for death in self.deaths_of(topic, began, last)):
            return None
        return call

    def epoch_at(self, name: str, first: int, last: int) -> int | None:
        """Return the incarnation that the topic had between two moments, if it is certain."""
        topic = self.topics.get(name)
        if topic is None or not topic.observed:
            return None
        if not topic.deletes:
            return topic.observed[0][2]
        index = bisect_left(topic.observed, (first,))
        for began, ended, epoch in topic.observed[max(0, index - 3) : index + 3]:
            if not topic.may_be_deleted(min(first, began), max(last, ended)):
                return epoch
        return None

    def observe(self, name: str, began: int, ended: int, epoch: Any) -> None:
        if isinstance(epoch, int):
            self.topic(name).observed.append((began, ended, epoch))

    # Classification of calls

    def _sort(self, call: Call) -> None:
        route = route_of(call)
        kind, name = route.kind, route.name
        body = call.body if isinstance(call.body, dict) else {}
        answer = call.answer if isinstance(call.answer, dict) else {}
        fate, until = fate_of(call), self.until(call)
        if "topics/x" in kind:
            topic = self.topic(name)
            if fate == DONE and call.method != "DELETE":
                topic.certain.append((call.began, call.ended, call))
            if fate == DONE:
                self.observe(name, call.began, call.ended, answer.get("epoch"))
        if fate == REFUSED:
            if kind == "POST topics/x":
                self._append(call, name, body, answer, fate)
            elif kind == "DELETE topics/x":
                topic.refused_deletes.append(call)
            return
        if kind == "PUT topics/x":
            topic.makers.append(until)
            self._configure(topic, call, body, fate, until)
        elif kind == "DELETE topics/x":
            if fate == UNKNOWN or answer.get("deleted"):
                topic.deletes.append((call.began, until, call))
                for setting, register in topic.settings.items():
                    register.write(call.began, until, fate == DONE, DEFAULTS[setting])
        elif kind == "POST topics/x":
            self._append(call, name, body, answer, fate)
        elif kind == "POST topics/x/delete":
            removal = Removal(call, body.get("before_seq"), body.get("match"), fate, until)
            topic.removals.append(removal)
        elif kind == "POST topics/x/redrive":
            removal = Removal(call, body.get("before_seq"), body.get("match"), fate, until)
            topic.redrives.append(removal)
        elif kind == "POST topics/x/claim":
            topic.claims.append(call)
            if fate == UNKNOWN:
                topic.unsure = min(topic.unsure, call.began)
        elif kind == "GET topics/x/work":
            topic.unsure = min(topic.unsure, call.began)
        elif kind in ("POST topics/x/ack", "POST topics/x/nack", "POST topics/x/extend"):
            self._settle(topic, call, kind.rpartition("/")[2], body, answer, fate, until)
        elif kind == "GET topics/x" and fate == DONE:
            topic.states.append(call)
        elif kind == "GET topics" and fate == DONE:
            for one in answer.get("topics", ()):
                self.observe(one["topic"], call.began, call.ended, one.get("epoch"))
        elif kind == "POST watch" and fate == DONE:
            for watched, state in answer.get("topics", {}).items():
                self.observe(watched, call.began, call.ended, state.get("epoch"))
        elif kind == "PUT routers/x":
            self.routers[name].append(RouterWrite(call, fate, body))
            for end in ("source", "dest"):
                if isinstance(body.get(end), str):
                    self.topic(body[end]).makers.append(NEVER)
        elif kind == "DELETE routers/x":
            self.routers[name].append(RouterWrite(call, fate, None))

    def _configure(
        self, topic: Topic, call: Call, fields: dict[str, Any], fate: str, until: int
    ) -> None:
        for setting, value in resolved(fields).items():
            topic.settings[setting].write(call.began, until, fate == DONE, value)
        if isinstance(fields.get("dead_letter"), str):
            self.topic(fields["dead_letter"]).makers.append(NEVER)

    def _append(
        self, call: Call, name: str, body: dict[str, Any], answer: dict[str, Any], fate: str
    ) -> None:
        topic = self.topic(name)
        key = body.get("idempotency_key") or call.headers.get("Idempotency-Key")
        append = Append(call, name, body.get("records", []), key, fate)
        if fate != REFUSED:
            topic.makers.append(self.until(call))
            may_create = fate == UNKNOWN or answer.get("created")
            if may_create and isinstance(body.get("config"), dict):
                self._configure(topic, call, body["config"], fate, self.until(call))
        if fate == DONE and "first_seq" in answer:
            append.seqs = range(answer["first_seq"], answer["last_seq"] + 1)
        topic.appends.append(append)
        for record in append.records:
            origin = origin_of(record)
            if origin is not None:
                self.appends[origin[:2]].append(append)
                break

    def _settle(
        self,
        topic: Topic,
        call: Call,
        what: str,
        body: dict[str, Any],
        answer: dict[str, Any],
        fate: str,
        until: int,
    ) -> None:
        seqs = body.get("seqs", [])
        done = set(seqs) - set(answer.get("skipped", ())) if fate == DONE else set()
        topic.settles.append(
            Settle(
                call,
                what,
                body.get("node", ""),
                seqs,
                body.get("lease_ids") or [],
                fate,
                done,
                until,
            )
        )

    # Paths of records between topics

    def ways(self) -> dict[str, set[str]]:
        """Determine which topics may receive records of a topic by routers, as dead letters or by
        redrives.
        """
        found: dict[str, set[str]] = defaultdict(set)
        for writes in self.routers.values():
            for write in writes:
                if write.config is not None:
                    found[write.source].add(write.dest)
        for topic in self.topics.values():
            targets = {target for target in topic.may("dead_letter") if target}
            found[topic.name] |= targets
            for target in targets:
                if self.topics[target].redrives:
                    found[target].add(topic.name)
            for source in {own for append in topic.appends for own in sources_of(append)}:
                if topic.redrives:
                    found[topic.name].add(source)
            for redrive in topic.redrives:
                to = redrive.call.body.get("to") if isinstance(redrive.call.body, dict) else None
                if to:
                    found[topic.name].add(to)
        for name in {target for targets in found.values() for target in targets}:
            self.topic(name)  # also for a topic that was never created
        return found


def reachable(ways: dict[str, set[str]], start: Iterable[str]) -> set[str]:
    """Return all topics that records of ``start`` may reach."""
    found, open_ = set(start), list(start)
    while open_:
        for topic in ways.get(open_.pop(), ()):
            if topic not in found:
                found.add(topic)
                open_.append(topic)
    return found


def resolved(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a body specifies, in their stored form."""
    found = {name: fields[name] for name in DEFAULTS if name in fields}
    if "durable" in fields and "durability" not in fields:
        found["durability"] = "fsync" if fields["durable"] else "disk"
    for name, (low, high) in CLAMPS.items():
        if found.get(name) is not None:
            found[name] = min(max(found[name], low), high)
    return found


def sources_of(append: Append) -> Iterator[str]:
    """Return the topics that its records name as their source, as dead letters do."""
    for record in append.records:
        source = (record.get("meta") or {}).get("$dead_letter_from")
        if isinstance(source, str):
            yield source


def origin_of(record: dict[str, Any]) -> Origin | None:
    """Return the append and the index of a record. Copies have those of their original."""
    data = record.get("data")
    if isinstance(data, dict) and {"by", "n", "i"} <= data.keys():
        return data["by"], data["n"], data["i"]
    return None
