"""The judge: checks a history of requests and responses against the contract.

The judge is conservative. A call without a response may have happened or not. Calls that overlap
may have happened in either order. If it is not certain to which incarnation of a topic a response
belongs, only the response itself is checked. Every check is one method of `Judge` and names the
promise that it verifies. `judge` runs all checks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain as chain_iterables
from itertools import pairwise
from typing import Any, NamedTuple

from tests.simulation.clients import END, LOST
from tests.simulation.history import Call, Entry, StreamEvent
from tests.simulation.model import (
    DEFAULTS,
    DONE,
    NEVER,
    REFUSED,
    UNKNOWN,
    Append,
    Delivery,
    Incarnation,
    Known,
    Model,
    Origin,
    Reading,
    RouterWrite,
    Settle,
    Topic,
    fate_of,
    origin_of,
    reachable,
    resolved,
    route_of,
)
from tests.simulation.restored import RESTORED
from tests.support.model import matches

MOST = 20  # reports of one promise and topic
TICK_S = 0.02
# a stream whose client reads nothing for 30 s is closed, and the client may never be notified
SLOW_S = 25.0
REDRIVE_LIMIT, REDRIVE_MAX_S = 1000, 20.0
REDRIVE_S = 5.0  # the last window of a redrive may be in flight for this time after its response
# an added or removed key takes effect within this time, because the simulated ticks are slow
KEY_S = 60.0
CODES = {
    400: "invalid_request batch_too_large record_too_large",
    401: "unauthorized",
    403: "forbidden",
    413: "payload_too_large",
    415: "unsupported_media_type",
    429: "throttled",
    503: "not_ready shutting_down",
}
QUEUE = {404: "topic_not_found not_found", 409: "not_a_queue"}
TOPIC = {404: "topic_not_found not_found"}
ROUTES: dict[str, dict[int, str]] = {
    "PUT topics/x": {201: "", 404: "not_found", 409: "topic_exists_incompatible"},
    "GET topics/x": TOPIC,
    "DELETE topics/x": {404: "not_found", 409: "topic_not_empty"},
    "POST topics/x": {**TOPIC, 201: "", 422: "topic_full"},
    "POST topics/x/diff": TOPIC,
    "POST topics/x/delete": TOPIC,
    "POST topics/x/redrive": TOPIC,
    **{f"POST topics/x/{what}": QUEUE for what in ("claim", "ack", "nack", "extend")},
    "GET topics/x/leases": QUEUE,
    "GET topics/x/work": {**QUEUE, 406: "not_acceptable"},
    "GET topics": {},
    "PUT routers/x": {**TOPIC, 201: "", 409: "topic_exists_incompatible router_cycle"},
    "GET routers/x": {404: "router_not_found not_found"},
    "DELETE routers/x": {404: "not_found"},
    "GET routers": {},
    "POST watch": {404: "topic_not_found"},
    "GET watch": {404: "topic_not_found", 406: "not_acceptable"},
    "GET watch/x": {404: "not_found", 406: "not_acceptable"},
    "GET metrics": {},
    "GET backup": {},
}


class Broken(NamedTuple):
    """A broken promise: a sentence for people, and the entries of the history that show it."""

    promise: str
    sentence: str
    entries: tuple[int, ...]


def judge(history: Sequence[Entry], *, shards: int) -> list[Broken]:
    """Return everything in the history that the contract does not allow, in order."""
    return Judge(Model(history, shards)).run()


class Judge:
    """One history. First the returned data is collected by incarnation, then each promise is
    checked.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.broken: list[Broken] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self.readings: list[Reading] = []
        self.ways = model.ways()
        self._silent: dict[tuple[str, int], int] = {}

    def run(self) -> list[Broken]:
        for call in self.model.calls:
            self.check_response(call)
        self.collect()
        for topic in self.model.topics.values():
            self.check_keys(topic)
            self.check_epochs(topic)
            for incarnation in topic.epochs.values():
                self.mark_removed(topic, incarnation)
        for topic in self.model.topics.values():
            for incarnation in topic.epochs.values():
                self.check_readings(topic, incarnation)
                self.check_heads(topic, incarnation)
                self.check_order(topic, incarnation)
                self.check_once(topic, incarnation)
                self.check_leases(topic, incarnation)
                self.check_settles(topic, incarnation)
                self.check_power(topic, incarnation)
        self.check_moves()
        self.check_final()
        self.check_redriven([one for name in self.model.topics for one in self.final(name)])
        self.check_backups()
        self.check_routers()
        return sorted(set(self.broken), key=lambda one: (one.entries[-1:], one))

    def report(self, promise: str, about: str, sentence: str, *entries: int) -> None:
        """Record a violation. Only the first ones of each kind are kept."""
        self._counts[promise, about] += 1
        if self._counts[promise, about] <= MOST:
            shown = f"{about}: {sentence}" if about else sentence
            self.broken.append(Broken(promise, shown, tuple(sorted({*entries} - {0}))))

    # Responses

    def check_response(self, call: Call) -> None:
        """Check that status and code belong to the route and that nothing contradicts a
        known fact.
        """
        if call.status is None:
            return
        route = route_of(call)
        what = f"{call.method} {call.path} responds with {call.status}"
        answer = call.answer if isinstance(call.answer, dict) else {}
        code = answer.get("error", {}).get("code", "")
        if route.kind in ROUTES:
            allowed = {200: "", **CODES, **ROUTES[route.kind]}
            if call.status not in allowed or (code not in allowed[call.status].split() and code):
                self.report("responses", "", f"{what} {code}, which is not documented", call.began)
                return
            if call.status >= 400 and not code:
                self.report("responses", "", f"{what} without a code", call.began)
        elif call.status >= 500 and call.status != 503:
            self.report("responses", "", f"{what} {code}", call.began)
        self.check_access(call, what)
        topic = self.model.topics.get(route.name)
        if topic is None or "topics/x" not in route.kind:
            return
        shown = self.model.exists(route.name, call.began, call.ended)
        is_going = any(
            one.began < call.ended and call.began < one.ended for one in topic.refused_deletes
        )
        if code == "topic_not_found" and shown is not None and not is_going:
            sentence = f"{what}, although the topic exists"
            self.report("responses", route.name, sentence, shown.began, call.began)
        if route.kind == "PUT topics/x" and answer.get("created") and shown is not None:
            sentence = "it is created although it exists"
            self.report("epochs", route.name, sentence, shown.began, call.began)
        kinds = topic.may("type", call.began, call.ended)
        if code == "not_a_queue" and kinds == {"queue"} and shown is not None:
            self.report("responses", route.name, f"{what}, although it is a queue", call.began)
        own = call.body.get("config") or {} if isinstance(call.body, dict) else {}
        discards = topic.may("discard", 0, call.ended) | {own.get("discard", "old")}
        if code == "topic_full" and discards == {"old"}:
            self.report(
                "responses", route.name, f"{what} although it discards old records", call.began
            )
        if fate_of(call) == DONE and route.kind in ("PUT topics/x", "GET topics/x"):
            self.check_config(topic, call, answer)
        if fate_of(call) == DONE and route.kind == "POST topics/x":
            self.check_appended(call, answer)
        if fate_of(call) == DONE and route.kind == "POST topics/x/redrive":
            self.check_redrive(topic, call, answer)

    def check_redrive(self, topic: Topic, call: Call, answer: dict[str, Any]) -> None:
        """Check that a redrive of a log ends after it has moved or tried all permitted records."""
        body = call.body if isinstance(call.body, dict) else {}
        has_reached_limit = answer["moved"] >= body.get("limit", REDRIVE_LIMIT)
        is_timeout = call.ended_at - call.at >= REDRIVE_MAX_S
        is_log = topic.may("type", call.began, call.ended) == {"log"}
        if (
            answer["remaining"]
            and is_log
            and not (has_reached_limit or is_timeout or self.may_fail(call))
        ):
            sentence = f"{call.path} moves {answer['moved']}, and {answer['remaining']} remain"
            self.report("redrives", topic.name, sentence, call.began)

    def may_fail(self, call: Call) -> bool:
        """Return whether a process was down or a disk failed during the call or shortly
        after it.
        """
        late = self.model.number_at(self.model.at(self.model.until(call)) + REDRIVE_S)
        return any(begin <= late and end >= call.began for begin, end in self.failures)

    def check_access(self, call: Call, what: str) -> None:
        """Check that a valid key is accepted, that a removed key is refused, and that the streams
        of a removed key are closed (§0.2).
        """
        key = call.headers.get("Authorization", "").removeprefix("Bearer ")
        added, removed = (self.model.keys.get((key, how)) for how in ("added", "removed"))
        may_be_old = removed is not None and call.ended > removed.number
        may_be_new = added is not None and call.at < added.at + KEY_S
        # a session has the key of the client that created it
        is_of_session = route_of(call).kind == "GET watch/x"
        if call.status == 401 and not (may_be_old or may_be_new or is_of_session):
            self.report("access", "", f"{what}, although the key is valid", call.began)
        # a work stream reports jobs late
        is_watch = route_of(call).kind in ("GET watch", "GET watch/x")
        received = [
            event
            for event in self.model.stream_events[call.began]
            if is_watch and event.event not in ("end", "error")
        ]
        is_requested = route_of(call).kind != "GET ready"
        if removed is not None and is_requested and call.status not in (401, 429, 503):
            until_s = removed.at + KEY_S
            if call.at > until_s or any(event.at > until_s for event in received):
                sentence = f"{what}, although its key was removed"
                self.report("access", "", sentence, removed.number, call.began)

    def check_config(self, topic: Topic, call: Call, answer: dict[str, Any]) -> None:
        """Check that a response contains the settings that were made."""
        config = answer.get("config", {})
        body = call.body if call.method == "PUT" and isinstance(call.body, dict) else {}
        requested = resolved(body)
        for name in DEFAULTS.keys() & config.keys():
            may = (
                {requested[name]} if name in requested else topic.may(name, call.began, call.ended)
            )
            if config[name] not in may:
                sentence = f"{name} is {config[name]!r}, it was set to {sorted(map(repr, may))}"
                self.report("config", topic.name, sentence, call.began)
        caps = topic.may("cap_records", call.began, call.ended)
        is_cut = 0 not in caps and topic.may("discard", 0, call.ended) == {"old"}
        if is_cut and answer.get("count", 0) > max(caps):
            sentence = f"its count of {answer['count']} records exceeds its cap {max(caps)}"
            self.report("config", topic.name, sentence, call.began)

    def check_appended(self, call: Call, answer: dict[str, Any]) -> None:
        """Check that the response to an append is consistent with itself and with its request."""
        first, last = answer.get("first_seq", 0), answer.get("last_seq", 0)
        count, seqs = answer.get("count"), answer.get("seqs")
        requested = len(call.body["records"])
        is_contiguous = count == last - first + 1 and answer.get("head_seq") == last
        if not is_contiguous or (seqs is not None and seqs != [*range(first, last + 1)]):
            fields = {name: answer.get(name) for name in ("first_seq", "last_seq", "count", "seqs")}
            sentence = f"the seqs of an append are not contiguous: {fields}"
            self.report("seqs", answer["topic"], sentence, call.began)
        if count != requested and not answer.get("deduped"):
            sentence = f"the response to an append of {requested} records has {count}"
            self.report("seqs", answer["topic"], sentence, call.began)

    # Collection

    def collect(self) -> None:
        """Collect readings, records and deliveries by incarnation."""
        model = self.model
        for call in model.calls:
            kind = route_of(call).kind
            if fate_of(call) != DONE:
                continue
            if kind == "POST topics/x/diff" and not self.is_in_no_backup(call):
                self.collect_page(call)
            elif kind == "POST topics/x/claim":
                name = route_of(call).name
                lease_ms = call.body.get("lease_ms")
                for job in call.answer["claimed"]:
                    self.collect_job(name, job, call, call.ended, call.ended_at, lease_ms)
        self.collect_streams()
        for reading in self.readings:
            if reading.epoch is not None:
                incarnation = self.incarnation(reading.topic, reading.epoch)
                incarnation.readings.append(reading)
                for record in reading.records:
                    self.collect_record(incarnation, record, reading)
        for topic in model.topics.values():
            for append in topic.appends:
                self.collect_append(topic, append)
            for incarnation in topic.epochs.values():
                self.complete_batches(topic, incarnation)

    def is_in_no_backup(self, call: Call) -> bool:
        """Return whether the call reads a restored topic whose records may be missing there.

        The records of an ephemeral topic are in no backup. Old records expire at the restore.
        """
        topic = self.model.topic(route_of(call).name)
        return call.client == RESTORED and (
            topic.ever("ttl_ms") or "ephemeral" in topic.may("durability")
        )

    def incarnation(self, name: str, epoch: int) -> Incarnation:
        epochs = self.model.topic(name).epochs
        return epochs.setdefault(epoch, Incarnation(name, epoch))

    def collect_page(self, call: Call) -> None:
        """Collect the response to a diff."""
        name, body, answer = route_of(call).name, call.body or {}, call.answer
        node, gap = body.get("node"), answer["tombstone"]
        is_anew = gap is not None and gap["reason"] == "recreated"
        if body.get("epoch") not in (None, answer.get("epoch")) and not is_anew:
            sentence = f"a reader of epoch {body['epoch']} is not notified of another epoch"
            self.report("epochs", name, sentence, call.began)
        low, high, head = body.get("from_seq", 0), answer["next_from_seq"], answer["head_seq"]
        low = min(answer["earliest_seq"] - 1, head) if is_anew else low
        shown = answer["records"]
        if body.get("wait_ms") and body.get("epoch") is not None and shown:
            low = min(low, shown[0]["$seq"] - 1)  # a reader above the head waits at the head
        reading = Reading(
            *(name, answer.get("epoch"), call.client, call.began, call.began, call.ended),
            *(call.ended_at, low, high, head, answer["records"], None if is_anew else gap),
            nodes=frozenset((node,) if isinstance(node, str) else node or ()),
            has_tags=body.get("include_tags", False),
            has_meta=body.get("include_meta", True),
        )
        self.readings.append(reading)
        seqs = [record["$seq"] for record in reading.records]
        limit = min(body.get("limit") or 256, 1000)
        if len(seqs) > limit:
            self.report("readers", name, f"{len(seqs)} records on a page of {limit}", call.began)
        if answer["caught_up"] != (high >= head) or answer["lag"] != max(0, head - high):
            sentence = f"a page to {high} of {head} has a wrong caught_up or lag"
            self.report("readers", name, sentence, call.began)
        if low > head and body.get("epoch") is None:
            self.report("epochs", name, f"{low} is above the head {head}, unreported", call.began)
        self.check_page(reading)
        is_by_floor = gap is not None and gap["reason"] in ("cap", "ttl")
        if is_by_floor and gap["gap_to"] != answer["earliest_seq"] - 1:
            sentence = f"the gap {gap} does not end before {answer['earliest_seq']}"
            self.report("readers", name, sentence, call.began)

    def check_page(self, reading: Reading) -> None:
        """Check that records are in order between the cursors and that a gap precedes them."""
        gap, low, seqs = reading.gap, reading.low, [one["$seq"] for one in reading.records]
        if gap is not None:
            # seqs in between were removed without a report
            if not low < gap["gap_from"] <= gap["gap_to"]:
                sentence = f"the gap {gap['gap_from']} to {gap['gap_to']} follows cursor {low}"
                self.report("readers", reading.topic, sentence, reading.entry)
            low = gap["gap_to"]
        ends = [low, *seqs, reading.high + 1]
        if any(a >= b for a, b in pairwise(ends)) and (seqs or gap):
            sentence = f"between {low} and {reading.high} the seqs are not in order: {seqs}"
            self.report("readers", reading.topic, sentence, reading.entry)
        if reading.high > max(reading.head, low):
            sentence = f"a reader is at {reading.high}, above the head {reading.head}"
            self.report("readers", reading.topic, sentence, reading.entry)
        if reading.nodes and self.model.topic(reading.topic).may("dedupe_node") == {True}:
            own = [one["$seq"] for one in reading.records if one.get("$node") in reading.nodes]
            if own:
                sentence = f"a node receives its own records: {own}"
                self.report("readers", reading.topic, sentence, reading.entry)

    def collect_streams(self) -> None:
        """Collect the events of watches and of work streams."""
        sessions: dict[str, Call] = {}
        positions: dict[str, dict[str, int]] = {}  # the positions of a client by event id
        for call in self.model.calls:
            route = route_of(call)
            if route.kind == "POST watch" and fate_of(call) == DONE:
                sessions[call.answer["wid"]] = call
            elif route.kind == "GET topics/x/work":
                lease_ms = route.query.get("lease_ms", [None])[0]
                for event in self.model.stream_events[call.began]:
                    if event.event == "job":
                        requested_ms = int(lease_ms) if lease_ms else None
                        self.collect_job(
                            route.name,
                            event.data,
                            call,
                            event.number,
                            event.at,
                            requested_ms,
                            is_stream=True,
                        )
            elif route.kind in ("GET watch", "GET watch/x"):
                Watch(self, call, sessions.get(route.name), positions).follow()

    def collect_job(
        self,
        name: str,
        job: dict[str, Any],
        call: Call,
        ended: int,
        ended_at: float,
        lease_ms: int | None,
        is_stream: bool = False,
    ) -> None:
        """Collect a job that was delivered to a client."""
        epoch, topic = self.model.epoch_at(name, call.began, ended), self.model.topic(name)
        node = route_of(call).query.get("node", [""])[0] if is_stream else call.body["node"]
        if epoch is None:
            topic.unsure = min(topic.unsure, call.began)
            topic.unplaced.add(node)
            return
        incarnation = self.incarnation(name, epoch)
        fields = resolved({"lease_ms": lease_ms}) if lease_ms is not None else {}
        may = {fields["lease_ms"]} if fields else topic.may("lease_ms", call.began, ended)
        seq = job["$seq"]
        entry, stream = (ended, call.began) if is_stream else (call.began, 0)
        delivery = Delivery(
            *(seq, node, job["lease_id"], job["deliveries"], entry, call.began, ended),
            call.at,
            ended_at,
            may,
            stream,
        )
        incarnation.deliveries[seq].append(delivery)
        reading = Reading(
            *(name, epoch, call.client, delivery.entry, call.began, ended, ended_at),
            *(seq - 1, seq, seq, [job]),
            has_tags=True,
        )
        self.collect_record(incarnation, job, reading)

    def collect_record(
        self, incarnation: Incarnation, record: dict[str, Any], reading: Reading
    ) -> None:
        """Collect a record that was returned to a client. It must be equal for all clients, and
        must have been appended.
        """
        known, name = incarnation.known(record["$seq"]), incarnation.topic
        names = ["$ts", "$node", *(["data"] if reading.has_data else [])]
        names += ["meta"] if reading.has_meta else []
        names += ["$tag"] if reading.has_tags else []
        for member in names:
            value = record.get(member)
            if known.record.setdefault(member, value) != value:
                sentence = f"{member} of record {known.seq} is {value!r}, for other readers it was"
                sentence += f" {known.record[member]!r}"
                self.report("stable", name, sentence, known.entry, reading.entry)
        if reading.has_tags:
            known.tag, known.is_tag_known = record.get("$tag"), True
        known.seen = min(known.seen, reading.ended)
        known.entry = known.entry or reading.entry
        if known.origin is None and reading.has_data:
            known.origin = origin_of(record)
            if known.origin is not None:
                self.check_origin(name, known, record, reading)

    def check_origin(
        self, name: str, known: Known, record: dict[str, Any], reading: Reading
    ) -> None:
        """Check that the record was appended to this topic or to a topic that its copies
        come from.
        """
        assert known.origin is not None
        by, n, i = known.origin
        appends = self.model.appends.get((by, n), [])
        fitting = [one for one in appends if i < len(one.records) and one.fate != REFUSED]
        homes = {one.topic for one in fitting}
        if not fitting:
            sentence = f"record {known.seq} ({by} {n} {i}) was never appended, or refused"
            self.report(
                "phantoms", name, sentence, *(one.call.began for one in appends), reading.entry
            )
            return
        if name not in reachable(self.ways, homes):
            sentence = f"record {known.seq} ({by} {n} {i}) belongs to {sorted(homes)}"
            self.report("phantoms", name, sentence, fitting[0].call.began, reading.entry)
        known.born = min(one.call.began for one in fitting)
        known.born_at = min(one.call.at for one in fitting)
        if known.born > reading.ended:
            self.report("phantoms", name, f"record {known.seq} precedes its append", reading.entry)
        sent = fitting[0].records[i]
        if record["data"] != sent["data"] or (
            reading.has_meta and client_meta(record) != client_meta(sent)
        ):
            sentence = f"record {known.seq} ({by} {n} {i}) differs from its append: {record}"
            self.report("stable", name, sentence, fitting[0].call.began, reading.entry)
        if reading.has_tags and record.get("$tag") not in (sent.get("tag"), None):
            sentence = f"record {known.seq} has the tag {record.get('$tag')!r}"
            self.report("stable", name, sentence, fitting[0].call.began, reading.entry)

    def collect_append(self, topic: Topic, append: Append) -> None:
        """Collect the seqs of an append from its response, if its incarnation is certain."""
        if not append.seqs:
            return
        call = append.call
        append.epoch = self.model.epoch_at(topic.name, call.began, call.ended)
        origins = [origin_of(record) for record in append.records]
        others = self.model.appends[origins[0][:2]] if origins[0] else ()
        if append.epoch is None and len(others) == 1:
            for epoch, incarnation in topic.epochs.items():
                stored = incarnation.records.get(append.seqs[0])
                if stored is not None and stored.origin and stored.origin == origins[0]:
                    append.epoch = epoch
        if append.epoch is None or len(append.seqs) != len(append.records):
            return
        incarnation = self.incarnation(topic.name, append.epoch)
        starts = [one for one in topic.appends if one.key and one.key == append.key] or [append]
        if call.answer["deduped"] and any(one.records != append.records for one in starts):
            return  # the payload belongs to another append
        first = min((one.call for one in starts), key=lambda one: one.began)
        for seq, record, origin in zip(append.seqs, append.records, origins, strict=True):
            known = incarnation.known(seq)
            if known.origin is not None and origin is not None and known.origin != origin:
                sentence = f"seq {seq} is {known.origin}, a response to an append names {origin}"
                self.report("seqs", topic.name, sentence, known.entry, call.began)
                continue
            known.origin, known.tag, known.is_tag_known = origin, record.get("tag"), True
            node = record.get("node", call.body.get("node"))
            if known.record.setdefault("$node", node) != node:
                sentence = f"record {seq} has the node {known.record['$node']!r}, not {node!r}"
                self.report("stable", topic.name, sentence, known.entry, call.began)
            if call.ended < known.acked:
                known.acked, known.acked_at = call.ended, call.ended_at
            known.born, known.born_at = first.began, first.at
            known.entry = known.entry or call.began

    def complete_batches(self, topic: Topic, incarnation: Incarnation) -> None:
        """Mark all records of a write as existing if one of them was returned (§2)."""
        if any(topic.name in targets for targets in self.ways.values()):
            return
        for known in list(incarnation.records.values()):
            if known.origin is None:
                continue
            by, n, i = known.origin
            appends = [one for one in self.model.appends[by, n] if one.topic == topic.name]
            if not appends:
                continue
            for at, record in enumerate(appends[0].records):
                other = incarnation.known(known.seq - i + at)
                if other.since == NEVER:
                    other.seen, other.born, other.entry = known.since, known.born, known.entry
                    other.born_at, other.origin = known.born_at, (by, n, at)
                    other.tag, other.is_tag_known = record.get("tag"), True

    # Removal

    def mark_removed(self, topic: Topic, incarnation: Incarnation) -> None:
        """For each record, determine the first moment from which it may be removed, and from which
        it is.
        """
        own = {
            removal.call.began
            for removal in topic.removals
            if self.model.epoch_at(topic.name, removal.call.began, removal.call.ended)
            == incarnation.epoch
        }
        for known in incarnation.records.values():
            known.removable_from = self.silent_from(topic, known.seq, known)
            for removal in topic.removals:
                if (
                    removal.fate == DONE
                    and removal.call.began in own
                    and known.since < removal.call.began
                    and removal.call.ended < known.removed
                    and (known.is_tag_known or removal.match is None)
                    and removal.fits(known.seq, known.tag)
                ):
                    known.removed, known.remover = removal.call.ended, removal.call.began
        for settle in topic.settles:
            call = settle.call
            if (
                settle.what == "ack"
                and settle.done
                and self.model.epoch_at(topic.name, call.began, call.ended) == incarnation.epoch
            ):
                for seq in settle.done & incarnation.records.keys():
                    known = incarnation.records[seq]
                    if call.ended < known.removed:
                        known.removed, known.remover = call.ended, call.began

    def silent_from(self, topic: Topic, seq: int, known: Known | None = None) -> int:
        """Return the first moment from which a record may be absent without a reported gap."""
        if known is None and (topic.name, seq) in self._silent:
            return self._silent[topic.name, seq]
        born = known.born if known else 0
        tag, is_tag_known = (known.tag, known.is_tag_known) if known else (None, False)
        moments = [
            removal.call.began
            for removal in topic.removals
            if removal.until >= born and removal.fits(seq, tag, is_tag_known)
        ]
        moments += [
            settle.call.began
            for settle in topic.settles
            if settle.what == "ack"
            and settle.until >= born
            and (seq in settle.done or (settle.fate == UNKNOWN and seq in settle.seqs))
        ]
        found = min(moments, default=NEVER)
        if known is None:
            self._silent[topic.name, seq] = found
        return found

    def moved_from(
        self, topic: Topic, incarnation: Incarnation, seq: int, known: Known | None = None
    ) -> int:
        """Return the first moment from which a record may have been moved to another topic."""
        tag, is_tag_known = (known.tag, known.is_tag_known) if known else (None, False)
        moments = [one.call.began for one in topic.redrives if one.fits(seq, tag, is_tag_known)]
        limits = [limit for limit in topic.may("max_deliveries") if limit]
        if limits and topic.ever("dead_letter"):
            moments.append(topic.unsure)
            began = sorted(one.began for one in incarnation.deliveries.get(seq, ()))
            moments += began[min(limits) - 1 : min(limits)]
        return min(moments, default=NEVER)

    # Readers

    def check_readings(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that each reader receives every record or a report of its loss, and no deleted
        record.
        """
        reported: dict[int, Reading] = {}  # lost seqs, and the reading that first reported them
        for reading in sorted(incarnation.readings, key=lambda one: one.ended):
            shown, gap = reading.seqs, reading.gap
            low = max(reading.low, gap["gap_to"]) if gap else reading.low
            before = range(reading.low + 1, gap["gap_from"] if gap else 0)
            for seq in chain_iterables(before, range(low + 1, reading.high + 1)):
                if seq not in shown and not self.may_be_absent(topic, incarnation, seq, reading):
                    self.report_absent(topic, incarnation, seq, reading)
            if gap is not None:
                self.check_gap(topic, incarnation, reading, gap)
                if gap["reason"] != "damaged":
                    for known in incarnation.between(gap["gap_from"], low):
                        reported.setdefault(known.seq, reading)
            for seq in shown:
                if seq in reported and reported[seq].ended < reading.began and not reading.is_live:
                    sentence = f"record {seq} is returned after it was reported as lost"
                    self.report("readers", topic.name, sentence, reported[seq].entry, reading.entry)
                self.check_removed(topic, incarnation.records[seq], reading)
                self.check_age(topic, incarnation.records[seq], reading)

    def may_be_absent(
        self, topic: Topic, incarnation: Incarnation, seq: int, reading: Reading
    ) -> bool:
        """Return whether a reader at this moment may receive neither the record nor a gap
        for it.
        """
        known = incarnation.records.get(seq)
        node = known.record.get("$node", "") if known else ""
        if reading.nodes and node in {"", *reading.nodes}:
            return True
        if known is not None and known.since == NEVER:
            known = None
        removable_from = known.removable_from if known else self.silent_from(topic, seq)
        if min(removable_from, self.moved_from(topic, incarnation, seq, known)) < reading.ended:
            return True
        born = known.born if known else 0
        ttl = [ms for ms in topic.may("ttl_ms", born, reading.ended) if ms]
        if not ttl:
            return False
        age_s = reading.at - (known.born_at if known else 0.0) + self.model.jumped_s()
        return bool(age_s * 1000 > min(ttl))

    def report_absent(
        self, topic: Topic, incarnation: Incarnation, seq: int, reading: Reading
    ) -> None:
        known = incarnation.records.get(seq)
        where = f"a reader of ({reading.low}, {reading.high}]"
        if known is None or known.since == NEVER:
            sentence = f"{where} is not notified of the missing record {seq}"
            self.report("seqs", topic.name, sentence, reading.entry)
            return
        is_acked = "acknowledged" if known.acked < NEVER else "shown"
        sentence = f"{where} gets no record {seq}, which was {is_acked}, and no gap"
        self.report("durability", topic.name, sentence, known.entry, reading.entry)

    def check_gap(
        self, topic: Topic, incarnation: Incarnation, reading: Reading, gap: dict[str, Any]
    ) -> None:
        """Check that each reported loss is a possible loss."""
        last = reading.ended
        caps = [cap for cap in topic.may("cap_records", 0, last) if cap]
        may_evict = (
            caps or any(topic.may("cap_bytes", 0, last)) or any(topic.may("ttl_ms", 0, last))
        )
        is_dest = any(topic.name in targets for targets in self.ways.values())
        if not may_evict and not is_dest and not [*self.model.deaths_of(topic, 0, last)]:
            sentence = f"{gap['gap_from']} to {gap['gap_to']} are reported as lost without a cause"
            self.report("durability", topic.name, sentence, reading.entry)
            return
        for known in incarnation.between(gap["gap_from"], gap["gap_to"]):
            seq = known.seq
            if known.since == NEVER or self.may_be_absent(topic, incarnation, seq, reading):
                continue
            if self.model.may_lose(topic, known, last) or self.may_be_evicted(
                topic, known, reading
            ):
                continue
            is_acked = "acknowledged" if known.acked < NEVER else "shown"
            sentence = f"record {seq}, which was {is_acked}, is reported as lost ({gap['reason']})"
            self.report("durability", topic.name, sentence, known.entry, reading.entry)

    def may_be_evicted(self, topic: Topic, known: Known, reading: Reading) -> bool:
        """Return whether cap or age may have evicted the record by then."""
        born, last = known.born, reading.ended
        if any(topic.may("cap_bytes", born, last)) or any(topic.may("ttl_ms", born, last)):
            return True  # `may_be_absent` handles ttl more exactly, and floors cover the seqs below
        caps = [cap for cap in topic.may("cap_records", born, last) if cap]
        return bool(caps) and (reading.is_live or known.seq + min(caps) <= reading.head)

    def check_removed(self, topic: Topic, known: Known, reading: Reading) -> None:
        """Check that no reader receives a record that was removed before its request."""
        if reading.is_live or known.removed >= reading.began:
            return
        if not self.model.may_undo(topic, known.remover, reading.ended):
            sentence = f"record {known.seq} is returned after it was deleted"
            self.report("deletes", topic.name, sentence, known.remover, reading.entry)

    def check_age(self, topic: Topic, known: Known, reading: Reading) -> None:
        """Check that no reader receives a record that was expired at its request."""
        ttl = topic.may("ttl_ms", known.born, reading.ended)
        if reading.is_live or 0 in ttl or known.acked == NEVER:
            return
        # The ``$ts`` may be ahead of the clock, because it continues from its value before a crash.
        walls = [one.wall - one.at for one in self.model.server_events]
        stamped_at = known.record.get("$ts", 0) / 1000 - min(walls, default=NEVER)
        born_at = max(known.acked_at, stamped_at)
        until_s = born_at + max(ttl) / 1000 + self.model.jumped_s() + TICK_S
        if self.model.at(reading.began) > until_s:
            sentence = f"record {known.seq} is returned after its age limit of {max(ttl)} ms"
            self.report("deletes", topic.name, sentence, known.entry, reading.entry)

    def check_heads(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that later requests return a head that is not lower, and that later appends get
        higher seqs.
        """
        knowns = sorted(
            (one for one in incarnation.records.values() if one.since < NEVER),
            key=lambda one: one.since,
        )
        highest: list[Known] = []
        for known in knowns:
            is_higher = not highest or known.seq > highest[-1].seq
            highest.append(known if is_higher else highest[-1])
        moments = [one.since for one in knowns]

        def expect(began: int, ended: int, seq: int, what: str, entry: int) -> None:
            index = bisect_left(moments, began)
            if not index or highest[index - 1].seq <= seq:
                return
            known = highest[index - 1]
            if not self.model.may_lose(topic, known, ended):
                sentence = f"{what} {seq} after record {known.seq} was known"
                self.report("real time", topic.name, sentence, known.entry, entry)

        for one in incarnation.readings:
            if not one.is_live:
                expect(one.began, one.ended, one.head, "a reader sees the head", one.entry)
        for call in topic.states:
            if call.answer.get("epoch") == incarnation.epoch:
                head = call.answer["head_seq"]
                expect(call.began, call.ended, head, "the state has the head", call.began)
        for append in topic.appends:
            if append.epoch == incarnation.epoch and not append.call.answer.get("deduped"):
                call = append.call
                index = bisect_left(moments, call.began)
                if index and highest[index - 1].seq >= append.seqs[0]:
                    known = highest[index - 1]
                    sentence = f"an append gets seq {append.seqs[0]}"
                    sentence += f" after record {known.seq} was known"
                    self.report("seqs", topic.name, sentence, known.entry, call.began)

    def check_order(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that ``$ts`` never decreases and that the records of a write are contiguous."""
        shown = [one for _, one in sorted(incarnation.records.items()) if "$ts" in one.record]
        for one, other in pairwise(shown):
            if other.record["$ts"] < one.record["$ts"]:
                sentence = f"$ts of record {other.seq} is lower than that of {one.seq}"
                self.report("seqs", topic.name, sentence, one.entry, other.entry)

    # Exactly once

    def check_once(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that no record of an append is stored more often than permitted."""
        found: dict[Origin, list[Known]] = defaultdict(list)
        for known in incarnation.records.values():
            if known.origin is not None and known.since < NEVER:
                found[known.origin].append(known)
        for origin, knowns in found.items():
            count_max = self.count_max(topic.name, origin, ()) if len(knowns) > 1 else 1
            if len(knowns) > count_max:
                seqs = [one.seq for one in knowns]
                sentence = (
                    f"{origin} is stored at {seqs}, but at most {int(count_max)} is permitted"
                )
                self.report("once", topic.name, sentence, *(one.entry for one in knowns))
        if self.is_returned(topic) or topic.name in reachable(
            self.ways, self.ways.get(topic.name, ())
        ):
            return  # copies return with their old stamps
        stamps: dict[str, Known] = {}
        for known in incarnation.records.values():
            stamp = (known.record.get("meta") or {}).get("_topics_router")
            if not isinstance(stamp, dict):
                continue
            router = self.model.routers.get(stamp["key"].rsplit(":", 3)[0], ())
            if all(one.dest != topic.name for one in router):
                continue  # a copy of a copy
            other = stamps.setdefault(stamp["key"], known)
            if other is not known and not self.may_lose_copies(topic):
                sentence = f"{stamp['key']} is stored at {other.seq} and {known.seq}"
                self.report("once", topic.name, sentence, other.entry, known.entry)

    def is_returned(self, topic: Topic) -> bool:
        """Return whether records may be moved out of a dead-letter topic."""
        return any(
            other.redrives and topic.name in self.ways.get(other.name, ())
            for other in self.model.topics.values()
        )

    def may_lose_copies(self, topic: Topic, first: int = 0, last: int = NEVER) -> bool:
        """Return whether the topic may have lost copies of ``first`` or later ones that were
        returned to readers, and may receive them again, by ``last``.
        """
        classes = topic.may("durability", topic.first)
        return any(
            death.what in ("damaged", "lost")
            or "ephemeral" in classes
            or (death.what == "power" and classes != {"fsync"})
            for death in self.model.deaths_of(topic, first, last)
        )

    def count_max(self, name: str, origin: Origin, way: tuple[str, ...]) -> float:
        """Return how often the record may be stored in the topic over its lifetime."""
        topic = self.model.topics.get(name)
        if topic is None:
            return 0
        if name in way or len(topic.epochs) > 1 or self.model.topic(name).deletes:
            return NEVER
        count: float = self.written(topic, origin)
        for writes in self.model.routers.values():
            for source in {one.source for one in writes if one.dest == name}:
                is_made_again = any(one.config is None for one in writes)
                if is_made_again or self.may_lose_copies(topic):
                    return NEVER
                count += self.count_max(source, origin, (*way, name))
        for other in self.model.topics.values():
            if name in other.may("dead_letter"):
                count += (
                    NEVER
                    if self.may_lose_copies(topic)
                    else self.count_max(other.name, origin, (*way, name))
                )
        return NEVER if self.is_returned(topic) else count

    def written(self, topic: Topic, origin: Origin) -> int:
        """Return how often the append itself may have been executed."""
        appends = [
            one
            for one in self.model.appends[origin[:2]]
            if one.topic == topic.name and one.fate != REFUSED
        ]
        count = sum(one.key is None for one in appends)
        for key in {one.key for one in appends if one.key is not None}:
            calls = [one.call for one in appends if one.key == key]
            is_kept = self.is_key_kept(topic, calls[0], max(calls, key=self.model.until))
            count += 1 if is_kept else len(calls)
        return count

    def is_key_kept(self, topic: Topic, first: Call, last: Call) -> bool:
        """Return whether the idempotency key of the first call must be known to the last one."""
        known = Known(0, born=first.began, acked=first.ended, acked_at=first.ended_at)
        if fate_of(first) != DONE:
            known.acked_at = NEVER
        window_ms = min(topic.may("idempotency_window_ms", first.began, self.model.until(last)))
        age_s = self.model.at(self.model.until(last)) - first.at + self.model.jumped_s()
        return (
            age_s * 1000 < window_ms
            and not self.model.may_lose(topic, known, self.model.until(last))
            and not topic.may_be_deleted(first.began, self.model.until(last))
        )

    def may_know_key(self, topic: Topic, first: Call, last: Call) -> bool:
        """Return whether the idempotency key of the first call may still be known to the
        last one.
        """
        window_ms = max(topic.may("idempotency_window_ms", first.began, last.ended))
        age_s = last.at - self.model.at(self.model.until(first)) - self.model.jumped_s() - TICK_S
        return first.began < last.ended and age_s * 1000 < window_ms

    def check_keys(self, topic: Topic) -> None:
        """Check that a known idempotency key returns the first response again (§0.8)."""
        by_key: dict[str, list[Append]] = defaultdict(list)
        for append in topic.appends:
            if append.key is not None and append.fate != REFUSED:
                by_key[append.key].append(append)
        for key, appends in by_key.items():
            answered = [one for one in appends if one.seqs]
            for one in answered:
                if one.call.answer["deduped"] and not any(
                    other is not one and self.may_know_key(topic, other.call, one.call)
                    for other in appends
                ):
                    sentence = f"the key {key} is deduped, but was not used within its window"
                    self.report("once", topic.name, sentence, one.call.began)
            for one, other in pairwise(answered):
                last = max(one.call, other.call, key=self.model.until)
                if not self.is_key_kept(topic, appends[0].call, last):
                    continue
                if one.seqs != other.seqs:
                    sentence = f"the key {key} has the seqs {[*one.seqs]} and {[*other.seqs]}"
                    self.report("once", topic.name, sentence, one.call.began, other.call.began)
                elif one.call.ended < other.call.began and not other.call.answer["deduped"]:
                    sentence = f"the key {key} is reused but not deduped"
                    self.report("once", topic.name, sentence, one.call.began, other.call.began)

    def check_epochs(self, topic: Topic) -> None:
        """Check that a recreated topic has a new epoch and that no other topic changes its
        epoch.
        """
        damaged = [one for one in self.model.deaths if one.what in ("damaged", "lost")]
        for one, other in pairwise(topic.observed):
            first, last = min(one[0], other[0]), max(one[1], other[1])
            if one[2] != other[2] and not topic.may_be_deleted(first, last) and not damaged:
                sentence = f"the epoch is {other[2]}, it was {one[2]} without a delete in between"
                self.report("epochs", topic.name, sentence, one[0], other[0])
        for began, until, call in topic.deletes:
            if fate_of(call) != DONE:
                continue
            before = {epoch for _, ended, epoch in topic.observed if ended < began}
            for seen, _, epoch in topic.observed:
                if seen > until and epoch in before:
                    sentence = f"epoch {epoch} is returned again after its delete"
                    self.report("epochs", topic.name, sentence, call.began, seen)
            for sure in topic.certain:
                if sure[0] > until and not any(maker >= began for maker in topic.makers):
                    sentence = "it responds after it was deleted"
                    self.report("epochs", topic.name, sentence, call.began, sure[0])

    def check_power(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that a power loss leaves a prefix of the records of class disk."""
        if any(topic.ever(name) for name in ("cap_records", "cap_bytes", "ttl_ms")):
            return
        before = 0  # records that were absent at an earlier crash may have been lost then
        for death in self.model.deaths:
            born, before = before, death.until
            if death.what != "power" or topic.may("durability", 0, death.noted) != {"disk"}:
                continue
            later = [
                one for one in incarnation.readings if one.began > death.until and not one.is_live
            ]
            shown = {record["$seq"] for one in later for record in one.records}
            known = incarnation.records
            kept = max((seq for seq in shown if known[seq].since < death.noted), default=0)
            for one in later:
                if one.gap is None or one.gap["reason"] != "mixed":
                    continue
                for lost in incarnation.between(one.gap["gap_from"], one.gap["gap_to"]):
                    if (
                        not born < lost.acked < death.noted
                        or lost.removable_from < NEVER
                        or lost.seq >= kept
                    ):
                        continue
                    if self.moved_from(topic, incarnation, lost.seq, lost) == NEVER:
                        sentence = f"a power loss removed {lost.seq} but kept {kept}"
                        self.report("durability", topic.name, sentence, death.noted, one.entry)

    # Queues

    def check_leases(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that a job has one lease holder at a time, and that its number of deliveries
        increases and is within its limit.
        """
        for seq, found in incarnation.deliveries.items():
            known = incarnation.records[seq]
            deliveries = sorted(found, key=lambda one: (one.count, one.ended))
            for one in deliveries:
                self.check_delivery(topic, incarnation, known, one)
                limits = topic.may("max_deliveries", one.began, one.ended)
                targets = topic.may("dead_letter", one.began, one.ended)
                if 0 not in limits and None not in targets and one.count > max(limits):
                    sentence = f"job {seq} is delivered {one.count} times, at most {max(limits)}"
                    self.report("queues", topic.name, sentence, one.entry)
            by_time = sorted(found, key=lambda one: (one.ended, one.count))
            for one, other in pairwise(by_time):
                if not self.may_follow(topic, one, other) and not (
                    other.began <= one.ended and self.may_follow(topic, other, one)
                ):
                    sentence = f"job {seq} is leased to {other.node} while {one.node} holds it"
                    self.report("queues", topic.name, sentence, one.entry, other.entry)
                if (
                    one.ended < other.began
                    and other.count <= one.count
                    and not self.lost_count(topic, one.began, other.ended)
                ):
                    sentence = f"delivery {other.count} of job {seq} follows delivery {one.count}"
                    self.report("queues", topic.name, sentence, one.entry, other.entry)

    def check_delivery(
        self, topic: Topic, incarnation: Incarnation, known: Known, one: Delivery
    ) -> None:
        """Check that no job is delivered after its ack or before its time."""
        if known.removed < one.began and not self.model.may_undo(topic, known.remover, one.ended):
            sentence = f"job {known.seq} is delivered after it was acked or deleted"
            self.report("queues", topic.name, sentence, known.remover, one.entry)
        appends = self.model.appends[known.origin[:2]] if known.origin else []
        if known.acked < NEVER and len(appends) == 1 and known.origin is not None:
            delay_ms = appends[0].records[known.origin[2]].get("delay_ms") or 0
            due_at = known.born_at + delay_ms / 1000 - self.model.jumped_s()
            if delay_ms and one.ended_at + TICK_S < due_at:
                sentence = f"job {known.seq} is delivered before its delay of {delay_ms} ms"
                self.report("queues", topic.name, sentence, known.entry, one.entry)
        for settle in topic.settles:
            call, delay_ms = settle.call, settle.what == "nack" and settle.call.body.get("delay_ms")
            if (
                delay_ms
                and known.seq in settle.done
                and call.ended < one.began
                and one.ended_at + TICK_S + self.model.jumped_s() < call.at + delay_ms / 1000
                and not self.lost_count(topic, call.began, one.ended)
                and self.model.epoch_at(topic.name, call.began, call.ended) == incarnation.epoch
            ):
                sentence = f"job {known.seq} is delivered {delay_ms} ms after a nack, or sooner"
                self.report("queues", topic.name, sentence, call.began, one.entry)

    def lost_count(self, topic: Topic, first: int, last: int) -> bool:
        """Return whether delivery counts and delays may be lost between two moments. An orderly
        stop keeps them if the disk accepts the checkpoint.
        """
        if not self.lost_lease(topic, first, last):
            return False
        return (
            bool(self.model.jumps)
            or "ephemeral" in topic.may("durability", first, last)
            or any(
                death.what not in ("stop", "start") or death.window_s == NEVER
                for death in self.model.deaths_of(topic, first, last)
            )
        )

    def lost_lease(self, topic: Topic, first: int, last: int) -> bool:
        """Return whether leases may be lost between two moments. They are durable from the response
        to the PUT that makes them durable.
        """
        is_logged = topic.may("durability", first, last) <= {"disk", "fsync"}
        deaths = [*self.model.deaths_of(topic, first, last)]
        return any(
            not (
                is_logged
                and death.what in ("kill", "start")
                and topic.may("leases_durable", max(first, death.number), death.until) == {True}
            )
            for death in deaths
        ) or bool(deaths and self.model.jumps)

    def may_follow(self, topic: Topic, one: Delivery, other: Delivery) -> bool:
        """Return whether the lease of ``one`` may have ended when ``other`` gets the job."""
        if self.held_until(topic, one, other.began, other.ended) <= other.ended_at + TICK_S:
            return True
        if self.lost_lease(topic, one.began, other.ended) or self.has_left(one, other.ended):
            return True
        return any(
            settle.what != "extend"
            and one.seq in settle.seqs
            and settle.fate != REFUSED
            and settle.call.began < other.ended
            and settle.until > one.began
            for settle in topic.settles
        )

    def has_left(self, one: Delivery, last: int) -> bool:
        """Return whether the stream that delivered a job may have ended."""
        if not one.stream:
            return False
        event = self.model.stream_events[one.stream]
        if event[-1].event == END and (event[-1].data == LOST or event[-1].number <= last):
            return True  # the client detects the loss of its stream late
        received_at = max(each.at for each in event if each.number <= last)
        return self.model.at(last) > received_at + SLOW_S or any(
            one.stream < number <= last for number in self.model.front_deaths
        )

    def held_until(self, topic: Topic, one: Delivery, first: int, last: int) -> float:
        """Return the earliest moment (s) at which the lease may expire."""
        ends = [one.began_at + min(one.lease_ms) / 1000]
        for settle in topic.settles:
            call = settle.call
            if settle.what != "extend" or one.seq not in settle.seqs or call.began >= last:
                continue
            if settle.until < one.began or settle.fate == REFUSED:
                continue
            end = call.at + resolved({"lease_ms": call.body["lease_ms"]})["lease_ms"] / 1000
            is_next = one.ended < call.began and call.ended < first and one.seq in settle.done
            ends = [end] if is_next and settle.node == one.node else [*ends, end]
        return min(ends)

    def over_by(self, topic: Topic, one: Delivery) -> float:
        """Return the latest moment (s) at which the lease may expire, if all extends were
        for it.
        """
        ends = [one.ended_at + max(one.lease_ms) / 1000]
        for settle in topic.settles:
            if settle.what == "extend" and one.seq in settle.seqs and settle.fate != REFUSED:
                call = settle.call
                lease_ms = resolved({"lease_ms": call.body["lease_ms"]})["lease_ms"]
                ends.append(self.model.at(settle.until) + lease_ms / 1000)
        return max(ends) + self.model.jumped_s()

    def check_settles(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that a lease holder can settle its job and that no other client can."""
        unsure = {call.body["node"] for call in topic.claims if fate_of(call) == UNKNOWN}
        unsure |= topic.unplaced
        unsure |= {
            route_of(call).query.get("node", [""])[0]
            for call in self.model.calls
            if route_of(call).kind == "GET topics/x/work" and route_of(call).name == topic.name
        }
        settles = [one for one in topic.settles if one.fate == DONE and one.node not in unsure]
        for settle in settles:
            call = settle.call
            if self.model.epoch_at(topic.name, call.began, call.ended) != incarnation.epoch:
                continue
            tokens = dict(zip(settle.seqs, settle.lease_ids, strict=False))
            for seq in settle.seqs:
                found = incarnation.deliveries.get(seq, [])
                own = [
                    one
                    for one in found
                    if one.node == settle.node
                    and one.began < call.ended
                    and tokens.get(seq, one.lease_id) == one.lease_id
                ]
                if seq in settle.done:
                    self.check_settled(topic, settle, seq, found, own)
                elif own and found and not unsure:
                    last = max(own, key=lambda one: one.ended)
                    self.check_skipped(topic, incarnation.records[seq], settle, found, last)

    def check_settled(
        self, topic: Topic, settle: Settle, seq: int, found: list[Delivery], own: list[Delivery]
    ) -> None:
        """Check that each settled job was held by the client that settled it."""
        if not own:
            sentence = f"{settle.node} {settle.what}s job {seq}, which it never held by this lease"
            self.report("queues", topic.name, sentence, settle.call.began)
        elif all(self.over_by(topic, one) + TICK_S < settle.call.at for one in own):
            sentence = f"{settle.node} {settle.what}s job {seq}, whose lease has expired"
            self.report("queues", topic.name, sentence, own[-1].entry, settle.call.began)
        latest = max((one.ended for one in own), default=NEVER)
        for other in found:
            is_later = other.node != settle.node and latest < other.began
            if is_later and self.is_held(topic, other, settle):
                sentence = f"{settle.node} {settle.what}s job {seq}, which {other.node} holds"
                self.report("queues", topic.name, sentence, other.entry, settle.call.began)

    def is_held(self, topic: Topic, one: Delivery, settle: Settle) -> bool:
        """Return whether the lease certainly exists during the call."""
        call = settle.call
        return (
            one.ended < call.began
            and self.held_until(topic, one, call.began, call.ended) > call.ended_at + TICK_S
            and not self.lost_lease(topic, one.began, call.ended)
            and not self.has_left(one, call.ended)
            and not any(
                other is not settle
                and one.seq in other.seqs
                and other.call.began < call.ended
                and other.until > one.began
                for other in topic.settles
            )
        )

    def check_skipped(
        self, topic: Topic, known: Known, settle: Settle, found: list[Delivery], last: Delivery
    ) -> None:
        """Check that a lease holder may settle an existing job. ``last`` is the latest delivery to
        the node.
        """
        call = settle.call
        is_latest = all(one is last or one.ended < last.began for one in found)
        may_continue = any(topic.ever(name) for name in ("cap_records", "cap_bytes", "ttl_ms"))
        may_continue |= any(one.call.began < call.ended for one in topic.redrives)
        if (
            is_latest
            and not may_continue
            and known.removable_from > call.ended
            and self.is_held(topic, last, settle)
            and not self.model.may_lose(topic, known, call.ended)
        ):
            sentence = f"{settle.node} holds job {known.seq}, but its {settle.what} is skipped"
            self.report("queues", topic.name, sentence, last.entry, call.began)

    def check_moves(self) -> None:
        """Check that a dead letter is stored once and that its job is stored nowhere else."""
        for topic in self.model.topics.values():
            may_have_copies = self.may_lose_copies(topic) or self.is_in_cycle(topic)
            for incarnation in topic.epochs.values():
                moved: dict[tuple[str, int], Known] = {}
                for known in incarnation.records.values():
                    meta = known.record.get("meta") or {}
                    name, seq = (
                        meta.get("$dead_letter_from", ""),
                        meta.get("$dead_letter_src_seq", 0),
                    )
                    queue = self.model.topics.get(name)
                    if not seq:
                        continue  # a client appended it
                    if queue is None or len(queue.epochs) != 1 or queue.deletes:
                        continue
                    if topic.name not in queue.may("dead_letter"):
                        continue  # a copy of a dead letter
                    other = moved.setdefault((name, seq), known)
                    if other is not known and not may_have_copies:
                        sentence = f"job {seq} of {name} is a dead letter at {other.seq}"
                        sentence += f" and {known.seq}"
                        self.report("once", topic.name, sentence, other.entry, known.entry)
                    (source,) = queue.epochs.values()
                    self.check_dead(topic, queue, source, known, seq)

    def is_in_cycle(self, topic: Topic) -> bool:
        """Return whether copies that routers make of the topic's records may return to it."""
        dests = {
            one.dest
            for writes in self.model.routers.values()
            for one in writes
            if one.source == topic.name
        }
        return topic.name in reachable(self.ways, dests)

    def check_dead(
        self, topic: Topic, queue: Topic, source: Incarnation, dead: Known, seq: int
    ) -> None:
        job = source.records.get(seq)
        if job is not None and job.origin and dead.origin and job.origin != dead.origin:
            sentence = f"dead letter {dead.seq} is not job {seq} of {queue.name}"
            self.report("stable", topic.name, sentence, job.entry, dead.entry)
        settings = queue.settings["max_deliveries"], queue.settings["dead_letter"]
        if any(len(one.writes) > 2 for one in settings) or self.may_lose_copies(queue):
            return  # a change of the config makes jobs claimable that are being moved
        for one in source.deliveries.get(seq, ()):
            if dead.seen < one.began:
                sentence = f"job {seq} is delivered, although it is a dead letter in {topic.name}"
                self.report("queues", queue.name, sentence, dead.entry, one.entry)

    # Final state

    def final(self, name: str) -> list[Reading]:
        """Return the last complete reading of a topic after all activity ended. It is empty without
        one.
        """
        chain: list[Reading] = []
        complete: list[Reading] = []
        for reading in self.readings:
            is_final = reading.client == "final" and reading.began > self.model.quiet
            if reading.topic != name or not is_final or reading.is_live:
                continue
            if reading.low == 0:
                chain = []
            if chain and (chain[-1].high != reading.low or chain[-1].epoch != reading.epoch):
                chain = []
            elif chain or reading.low == 0:
                chain.append(reading)
            if chain and reading.high >= reading.head:
                complete = [*chain]
        return complete

    def check_final(self) -> None:
        """Check that after all activity ended, counters are exact and moved records are at their
        target.
        """
        for topic in self.model.topics.values():
            chain = self.final(topic.name)
            if not chain or chain[0].epoch is None:
                continue
            seqs = [record["$seq"] for reading in chain for record in reading.records]
            self.check_counters(topic, chain, seqs)
            self.check_moved(topic, chain, set(seqs), lambda origin: len(self.copies[origin]) > 1)

    @cached_property
    def copies(self) -> dict[Origin, list[Known]]:
        """Return all records that were returned or acknowledged, by their origin."""
        found: dict[Origin, list[Known]] = defaultdict(list)
        for topic in self.model.topics.values():
            for incarnation in topic.epochs.values():
                for known in incarnation.records.values():
                    if known.origin and known.since < NEVER:
                        found[known.origin].append(known)
        return found

    def check_backups(self) -> None:
        """Check that a restored backup has every record acknowledged before its request.

        It has no record in two topics, because it was cut while no move was in flight.
        """
        backups: dict[int, dict[str, list[Reading]]] = defaultdict(lambda: defaultdict(list))
        for reading in self.readings:
            if reading.client == RESTORED:
                backups[reading.began][reading.topic].append(reading)
        for chains in backups.values():
            readings = [*chain_iterables(*chains.values())]
            self.check_redriven(readings, readings[0].ended)
            restored = {origin_of(record) for one in readings for record in one.records}
            for name, chain in chains.items():
                seqs = {record["$seq"] for reading in chain for record in reading.records}

                def is_found(origin: Origin, last: int = chain[-1].ended) -> bool:
                    may_be_removed = any(one.removable_from < last for one in self.copies[origin])
                    return origin in restored or may_be_removed  # noqa: B023

                targets = reachable(self.ways, [name])
                if not any(
                    "ephemeral" in self.model.topic(one).may("durability") for one in targets
                ):
                    self.check_moved(self.model.topic(name), chain, seqs, is_found)

    def check_counters(self, topic: Topic, chain: list[Reading], seqs: list[int]) -> None:
        if topic.ever("ttl_ms"):
            return
        states = [one for one in topic.states if one.client == "final"]
        states = [one for one in states if one.began > self.model.quiet]
        answers = [(one.began, one.answer) for one in states]
        for call in self.model.calls:
            if call.client == "final" and route_of(call).kind == "GET topics" and call.answer:
                listed = call.answer.get("topics", ()) if fate_of(call) == DONE else ()
                answers += [(call.began, one) for one in listed if one["topic"] == topic.name]
        for entry, answer in answers:
            if entry < self.model.quiet or answer.get("epoch") != chain[0].epoch:
                continue
            expected = {
                "head_seq": chain[-1].head,
                "count": len(seqs),
                "earliest_seq": seqs[0] if seqs else chain[-1].head + 1,
            }
            for name, value in expected.items():
                if answer[name] != value:
                    sentence = f"{name} is {answer[name]}, but a read returns {value}"
                    self.report("counters", topic.name, sentence, entry, chain[0].entry)
            queue = answer.get("queue")
            if queue is not None:
                jobs = queue["ready"] + queue["in_flight"] + queue.get("delayed", 0)
                is_less = jobs < len(seqs) and not any(one.what == "nack" for one in topic.settles)
                if (jobs > len(seqs) or is_less) and not topic.ever("max_deliveries"):
                    sentence = f"{queue} differ from its {len(seqs)} jobs"
                    self.report("counters", topic.name, sentence, entry, chain[0].entry)

    def check_moved(
        self,
        topic: Topic,
        chain: list[Reading],
        seqs: set[int],
        is_found: Callable[[Origin], bool],
    ) -> None:
        """Check that records that only a move can have removed are in a target of moves."""
        epoch = chain[0].epoch
        assert epoch is not None
        targets = reachable(self.ways, [topic.name]) - {topic.name}
        if topic.ever("ttl_ms"):
            return
        incarnation, last = topic.epochs[epoch], chain[-1].ended
        gaps = [one.gap for one in chain if one.gap is not None]
        for known in incarnation.records.values():
            if known.acked >= chain[0].began or known.seq in seqs or not known.origin:
                continue
            if known.removable_from < last or any(
                gap["gap_from"] <= known.seq <= gap["gap_to"] for gap in gaps
            ):
                continue
            moved = self.moved_from(topic, incarnation, known.seq, known)
            if (
                moved < last
                and not is_found(known.origin)
                and not any(self.is_lossy(self.model.topic(name), moved) for name in targets)
            ):
                sentence = f"job {known.seq} is neither in its queue nor in {sorted(targets)}"
                self.report("queues", topic.name, sentence, known.entry, chain[0].entry)

    def is_lossy(self, topic: Topic, first: int = 0) -> bool:
        """Return whether records of ``first`` or later may be lost, or leave the topic, before a
        client receives them. A client that acks a job has received it.
        """
        has_caps = any(topic.ever(name) for name in ("cap_records", "cap_bytes"))
        return (
            (has_caps and "old" in topic.may("discard", topic.first + 1))
            or topic.ever("ttl_ms")
            or any(until >= first for _, until, _ in topic.deletes)
            or any(removal.until >= first for removal in topic.removals)
            or self.may_lose_copies(topic, first)
        )

    def check_redriven(self, readings: Sequence[Reading], last: int = NEVER) -> None:
        """Check that no record is in two of the topics that were read by ``last``.

        This holds for any skipped records and any number of concurrent redrives, unless a failure
        occurred during one of them. Topics that copies of routers may reach are ignored.
        """
        dests = {one.dest for those in self.model.routers.values() for one in those if one.config}
        copied = reachable(self.ways, dests)
        positions: dict[Origin, list[Known]] = defaultdict(list)
        names: dict[Origin, set[str]] = defaultdict(set)
        for reading in readings:
            for record in reading.records if reading.topic not in copied else ():
                origin = origin_of(record)
                if origin is not None and reading.epoch is not None:
                    incarnation = self.incarnation(reading.topic, reading.epoch)
                    positions[origin].append(incarnation.records[record["$seq"]])
                    names[origin].add(reading.topic)
        for origin, knowns in positions.items():
            appends = self.model.appends.get(origin[:2], [])
            if len(knowns) < 2 or len(appends) != 1 or appends[0].fate != DONE:
                continue
            if self.is_moved_once(appends[0].topic, names[origin], last):
                sentence = f"{origin} is in {sorted(names[origin])}, at"
                sentence += f" {[known.seq for known in knowns]}"
                promise = "redrives" if last == NEVER else "backups"
                self.report(promise, "", sentence, *(known.entry for known in knowns))

    @cached_property
    def failures(self) -> list[tuple[int, int]]:
        """Return the intervals in which processes were down or a disk failed."""
        found = [(death.number, death.until) for death in self.model.deaths]
        found += [(number, number) for number in self.model.front_deaths]
        faults = [one for one in self.model.server_events if one.what == "fault"]
        repaired = [one.number for one in self.model.server_events if one.what == "repaired"]
        for fault in faults:
            until = min((end for end in repaired if end > fault.number), default=NEVER)
            found.append((fault.number, until))
        return found

    def is_moved_once(self, name: str, targets: set[str], last: int) -> bool:
        """Return whether each record of the topic can be in only one of ``targets``.

        All topics on the ways to ``targets`` matter. Redrives that began after ``last`` do not.
        """
        ways = {
            one for one in reachable(self.ways, {name}) if targets & reachable(self.ways, {one})
        }
        for topic in [topic for topic in self.model.topics.values() if topic.name in ways]:
            settings = topic.settings["max_deliveries"], topic.settings["dead_letter"]
            if topic.deletes or len(topic.epochs) > 1 or self.may_lose_copies(topic, 0, last):
                return False
            if any(len(one.writes) > 2 for one in settings):
                return False  # jobs that are being moved may be claimable again
            redrives = [one for one in topic.redrives if one.call.began < last]
            if any(one.fate != DONE or self.may_fail(one.call) for one in redrives):
                return False
        return True

    def check_routers(self) -> None:
        """Check that copies are complete after all activity ended, and in the order of their
        source.
        """
        routers = self.model.routers
        for name, writes in routers.items():
            ends = {(one.source, one.dest) for one in writes if one.config}
            if len(ends) != 1:
                continue
            source, dest = next(iter(ends))
            into = [
                other for other, those in routers.items() if any(one.dest == dest for one in those)
            ]
            if dest in reachable(self.ways, self.ways.get(dest, ())):
                continue
            topics = self.model.topic(source), self.model.topic(dest)
            chain, copies = (self.final(topic.name) for topic in topics)
            if chain and copies and not any(topic.deletes for topic in topics):
                if into == [name] and self.direct_sources(dest) == [source]:
                    self.check_copies(*topics, chain, copies)
                self.check_router(name, writes, *topics, chain, copies)

    def direct_sources(self, name: str) -> list[str]:
        """Return the topics that records may come from in one step."""
        return [one for one, targets in self.ways.items() if name in targets]

    def check_copies(
        self, source: Topic, dest: Topic, chain: list[Reading], copies: list[Reading]
    ) -> None:
        """Check that copies are in the order of the source."""
        origins = [origin_of(one) for reading in chain for one in reading.records]
        stored = [origin_of(one) for reading in copies for one in reading.records]
        once = {one for one, count in Counter(origins).items() if count == 1 and one is not None}
        once &= {one for one, count in Counter(stored).items() if count == 1}
        own = {origin_of(record) for one in dest.appends for record in one.records}
        order = {origin: at for at, origin in enumerate(origins) if origin in once - own}
        placed = [order[one] for one in stored if one in order]
        if not source.redrives and not any(topic.redrives for topic in self.model.topics.values()):
            for one, other in pairwise(placed):
                if other < one:
                    sentence = f"copies of {source.name} are in another order: {origins[one]}"
                    sentence += f" before {origins[other]}"
                    self.report("routers", dest.name, sentence, copies[0].entry, chain[0].entry)
                    break

    def check_router(
        self,
        name: str,
        writes: list[RouterWrite],
        source: Topic,
        dest: Topic,
        chain: list[Reading],
        copies: list[Reading],
    ) -> None:
        """Check that each remaining record of the source was copied, unless its copy may have been
        removed.
        """
        is_kept = all(one.fate == DONE and one.config for one in writes)
        filters = {str(one.config.get("filter")) for one in writes if one.config}
        if not is_kept or len(filters) != 1 or not writes[0].config:
            return
        ways_in = [
            other
            for other, those in self.model.routers.items()
            if any(one.dest == dest.name for one in those)
        ]
        if self.direct_sources(dest.name) == [source.name] and ways_in == [name]:
            self.check_filter(name, writes[0].config.get("filter"), source, dest)
        acked = any(one.what == "ack" for one in dest.settles)
        moves_on = dest.redrives or dest.ever("dead_letter") or acked
        is_damaged = any(one.what in ("damaged", "lost") for one in self.model.deaths)
        if moves_on or is_damaged or "reject" in dest.may("discard"):
            return
        floor = self.head_after(source, chain[0].epoch, writes[0].call.ended)
        # A dest removes its oldest records first.
        is_cut = self.is_lossy(dest) or any(one.gap for one in copies)
        match, is_first = writes[0].config.get("filter"), is_cut
        copied = {origin_of(one) for reading in copies for one in reading.records}
        ever = {one.origin for epoch in dest.epochs.values() for one in epoch.records.values()}
        for reading in chain:
            for record in reading.records:
                known = source.epochs[reading.epoch or 0].records[record["$seq"]]
                is_first = is_first and known.origin not in copied
                if record["$seq"] <= floor or known.since > self.model.quiet or is_first:
                    continue
                if known.origin in ever or not known.origin or not known.is_tag_known:
                    continue
                if matches(match, known.tag) and not any(
                    one.match is not None and one.fits(0, known.tag) for one in dest.removals
                ):
                    sentence = f"{name} has not copied record {known.seq} of {source.name}"
                    self.report("routers", dest.name, sentence, known.entry, copies[-1].entry)

    def check_filter(self, name: str, match: Any, source: Topic, dest: Topic) -> None:
        """Check that no copy is of a record that the filter excludes."""
        tags = {
            known.origin: known.tag
            for incarnation in source.epochs.values()
            for known in incarnation.records.values()
            if known.is_tag_known
        }
        own = {origin_of(record) for one in dest.appends for record in one.records}
        # a redrive of the source copies these without the router
        own |= {
            origin_of(record)
            for one in source.appends
            for record in one.records
            if (record.get("meta") or {}).get("$dead_letter_from") == dest.name
        }
        for incarnation in dest.epochs.values():
            for known in incarnation.records.values():
                if known.since == NEVER or known.origin in own or known.origin not in tags:
                    continue
                if not matches(match, tags[known.origin]):
                    sentence = f"{name} has copied {known.origin} with {tags[known.origin]!r}"
                    self.report("routers", dest.name, sentence, known.entry)

    def head_after(self, topic: Topic, epoch: int | None, moment: int) -> int:
        """Return a head that the topic had at the moment or later. Records above it were appended
        later.
        """
        seqs = [
            reading.head
            for reading in self.readings
            if reading.topic == topic.name
            and reading.epoch == epoch
            and reading.began > moment
            and not reading.is_live
        ]
        seqs += [
            append.seqs[0] - 1
            for append in topic.appends
            if append.seqs and append.call.began > moment and not append.call.answer["deduped"]
        ]
        return min(seqs, default=NEVER)


class Watch:
    """One stream of a watch: the position of its client in each topic."""

    def __init__(
        self, judge: Judge, call: Call, session: Call | None, positions: dict[str, dict[str, int]]
    ) -> None:
        self._judge, self._call, self._positions = judge, call, positions
        self._body = (session.body if session else None) or {}
        self._query = route_of(call).query
        last_id = call.headers.get("Last-Event-ID", "")
        self._at: dict[str, int] = {**positions.get(last_id, {})}
        # A new session gets its positions from the response. An older session has later ones.
        key = f"session {route_of(call).name}"
        if not last_id and session is not None and key not in positions:
            starts = session.answer["topics"]
            self._at = {topic: one["from_seq"] for topic, one in starts.items()}
        positions[key] = {}
        if "from_seq" in self._query and not last_id:
            names = self._query.get("topic", ())
            self._at = dict.fromkeys(names, int(self._query["from_seq"][0]))
        self._epochs: dict[str, int] = {}
        self._fresh = set(self._at)  # topics without a received event
        self._anew: set[str] = set()  # topics that were just recreated

    def _option(self, name: str, default: Any) -> Any:
        values = self._query.get(name)
        return self._body.get(name, default) if values is None else values[0] == "true"

    def follow(self) -> None:
        """Check each event against the position of the client."""
        for event in self._judge.model.stream_events[self._call.began]:
            if event.event in ("record", "tombstone", "caught-up"):
                self._take(event)
                if event.id:
                    self._positions[event.id] = dict(self._at)
            elif event.event == "topic-deleted":
                self._at.pop(event.data["topic"], None)
                self._epochs.pop(event.data["topic"], None)

    def _take(self, event: StreamEvent) -> None:
        name, data = event.data["topic"], event.data
        is_first = name in self._fresh
        self._fresh.discard(name)
        model = self._judge.model
        if event.event == "tombstone" and data["reason"] == "recreated":
            self._epochs.pop(name, None)
            self._at[name] = min(data["earliest_seq"] - 1, data["head_seq"])
            self._anew.add(name)
            return
        epoch = self._epochs.get(name) or model.epoch_at(name, self._call.began, event.number)
        if epoch is None:
            self._at.pop(name, None)
        else:
            self._epochs[name] = epoch
        if is_first and model.topic(name).deletes:
            self._at.pop(name, None)
        at, gap = self._at.get(name), None
        if event.event == "record":
            begin, end, records = data["from_seq"], data["to_seq"], data["records"]
        elif event.event == "tombstone":
            begin, end, records, gap = data["gap_from"] - 1, data["gap_to"], [], data
        else:
            begin, end, records = data["head_seq"], data["head_seq"], []
        if name in self._anew:  # records below the earliest seq are reported as a gap
            self._anew.discard(name)
            begin = max(begin, at or 0)
        if at is not None and begin < at and not is_first:
            sentence = f"a stream at {at} receives {event.event} from {begin}"
            self._judge.report("readers", name, sentence, self._call.began, event.number)
        self._at[name] = end
        low = begin if at is None else min(at, begin)
        node: Any = self._body.get("node") or self._query.get("node", ())
        reading = Reading(
            *(name, epoch, event.client, event.number, self._call.began, event.number, event.at),
            *(low, end, max(data["head_seq"], end), records),
            nodes=frozenset((node,) if isinstance(node, str) else node),
            has_tags=self._option("include_tags", False),
            has_data=self._option("include_data", True),
            has_meta=self._option("include_meta", True) and self._option("include_data", True),
            is_live=True,
        )
        self._judge.readings.append(reading)
        if gap is None:
            self._judge.check_page(reading)
        else:
            # The seqs before the gap are skipped without a report.
            reading.gap = {**gap, "gap_from": begin + 1}


def client_meta(record: dict[str, Any]) -> dict[str, Any]:
    """Return the meta of a record without the fields that the server added."""
    meta = record.get("meta") or {}
    return {
        name: value
        for name, value in meta.items()
        if not name.startswith("$dead_letter_") and name != "_topics_router"
    }
