"""Collection of the returned data by incarnation: pages, events of streams, jobs and appends.

A record must be equal for all clients and must have been appended. Both are checked here, because
the later checks rely on them.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.history import Call
from tests.simulation.judging.base import JudgeBase
from tests.simulation.judging.watches import Watch
from tests.simulation.model import (
    DONE,
    NEVER,
    REFUSED,
    Append,
    Delivery,
    Incarnation,
    Known,
    Reading,
    Topic,
    fate_of,
    origin_of,
    reachable,
    resolved,
    route_of,
)
from tests.simulation.restored import RESTORED


class Collection(JudgeBase):
    """Collects readings, records, deliveries and removals."""

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


def client_meta(record: dict[str, Any]) -> dict[str, Any]:
    """Return the meta of a record without the fields that the server added."""
    meta = record.get("meta") or {}
    return {
        name: value
        for name, value in meta.items()
        if not name.startswith("$dead_letter_") and name != "_topics_router"
    }
