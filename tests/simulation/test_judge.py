"""The judge: for each promise a history that keeps the promise, and a variant that breaks it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.history import Call, History
from tests.simulation.judge import judge
from tests.simulation.model import DEFAULTS

SHARDS = 3
T, Q, D = "t", "q", "d"
Case = Callable[["Scenario", bool], None]
CASES: list[tuple[str, str, Case]] = []


class Scenario:
    """Builds a history. Every call takes 10 ms. The epoch is 1 until a topic is
    recreated. ``records``: by topic and seq the appended records as readers receive them.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.history = History(lambda: self.now, lambda: self.now)
        self.records: dict[tuple[str, int], dict[str, Any]] = {}
        self.epochs: dict[str, int] = {}

    def call(
        self,
        path: str,
        body: Any = None,
        answer: Any = None,
        status: int | None = 200,
        method: str = "POST",
        client: str = "c",
        **headers: str,
    ) -> int:
        call = self.history.record_request(client, method, f"/v0/{path}", body, **headers)
        self.now += 0.01
        if status is not None and status >= 400 and isinstance(answer, str):
            answer = {"error": {"code": answer, "message": ""}}
        self.history.record_response(call, status, answer)
        return call.began

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def make(self, topic: str = T, status: int | None = 201, **config: Any) -> None:
        self.epochs[topic] = self.epochs.get(topic, 0) + 1
        answer = {
            "topic": topic,
            "created": status == 201,
            "epoch": self.epochs[topic],
            "config": {**DEFAULTS, **config},
        }
        self.call(f"topics/{topic}", config, answer, status, "PUT")

    def configure(self, topic: str, **config: Any) -> None:
        answer = {
            "topic": topic,
            "created": False,
            "epoch": self.epochs[topic],
            "config": {**DEFAULTS, **config},
        }
        self.call(f"topics/{topic}", config, answer, 200, "PUT")

    def append(
        self, n: int, seq: int = 0, topic: str = T, count: int = 1, status: int | None = 200,
        deduped: bool = False, meta: Any = None, tag: str | None = None, **body: Any,
    ) -> int:  # fmt: skip
        extra = {"meta": meta} if meta else {}
        tags = {"tag": tag} if tag else {}
        delay = {"delay_ms": body.pop("delay_ms")} if "delay_ms" in body else {}
        sent = [
            {"data": {"by": "c", "n": n, "i": i}, **extra, **tags, **delay} for i in range(count)
        ]
        answer: Any = {
            "topic": topic,
            "first_seq": seq,
            "last_seq": seq + count - 1,
            "count": count,
            "head_seq": seq + count - 1,
            "created": False,
            "deduped": deduped,
        }
        if seq and not deduped:
            for i in range(count):
                self.put(topic, seq + i, n, i, tag, **extra)
        answer = answer if status == 200 else {"error": {"code": "not_ready"}}
        return self.call(f"topics/{topic}", {"records": sent, **body}, answer, status)

    def put(
        self, topic: str, seq: int, n: int, i: int = 0, tag: str | None = None, **more: Any
    ) -> None:
        """Add a record, regardless of the client that appended it."""
        record = {"$seq": seq, "$ts": 1000 + seq, "data": {"by": "c", "n": n, "i": i}, **more}
        self.records[topic, seq] = record | ({"$tag": tag} if tag else {})

    def page(
        self, *seqs: int, topic: str = T, low: int = 0, head: int | None = None,
        gap: tuple[int, int, str] | None = None, client: str = "r", epoch_read: int | None = None,
        **changed: Any,
    ) -> int:  # fmt: skip
        high = max([low, *seqs, gap[1] if gap else 0, *([head] if head else [])])
        fields = {"gap_from": gap[0], "gap_to": gap[1], "reason": gap[2]} if gap else None
        answer = {
            "topic": topic,
            "records": [self.records[topic, seq] for seq in seqs],
            "next_from_seq": high,
            "head_seq": high,
            "caught_up": True,
            "lag": 0,
            "earliest_seq": min([*seqs, high + 1]),
            "tombstone": fields,
            "epoch": self.epochs.get(topic, 1),
        }
        body = {"from_seq": low, "include_tags": True, "limit": 1000, "epoch": epoch_read}
        return self.call(f"topics/{topic}/diff", body, answer | changed, client=client)

    def state(self, topic: str = T, client: str = "r", **fields: Any) -> None:
        answer = {"topic": topic, "epoch": self.epochs.get(topic, 1), **fields}
        self.call(f"topics/{topic}", None, answer, method="GET", client=client)

    def claim(self, *seqs: int, node: str = "w", count: int = 1, **body: Any) -> None:
        jobs = [
            {**self.records[Q, seq], "lease_id": f"{node}{count}", "deadline": 0}
            | {"deliveries": count}
            for seq in seqs
        ]
        answer = {"topic": Q, "claimed": jobs, "count": len(jobs), "ready": 0}
        self.call(f"topics/{Q}/claim", {"node": node, "max": 9, **body}, answer)

    def settle(
        self, what: str, seq: int, node: str = "w", skipped: bool = False, **body: Any
    ) -> None:
        answer = {"topic": Q, "skipped": [seq] if skipped else []}
        self.call(f"topics/{Q}/{what}", {"node": node, "seqs": [seq], **body}, answer)

    def watch(self, *events: tuple[str, dict[str, Any]], start: int = 0, last: str = "") -> None:
        fields = {T: {"from_seq": start, "head_seq": 9, "earliest_seq": 1, "epoch": 1}}
        self.call("watch", {"topics": {T: {"from_seq": start}}}, {"wid": "wid", "topics": fields})
        self.follow(*events, last=last)

    def follow(self, *events: tuple[str, dict[str, Any]], last: str = "") -> None:
        headers = {"Last-Event-ID": last} if last else {}
        call = self.history.record_request("w", "GET", "/v0/watch/wid", None, **headers)
        self.history.record_response(call, 200, None)
        for event, data in events:
            if "records" in data:
                data["records"] = [self.records[T, seq] for seq in data["records"]]
            end = data.get("to_seq", data.get("gap_to", 0))
            self.history.record_stream_event(
                call, event, f"id{end}", {"topic": T, "head_seq": 9, **data}
            )
        self.history.record_stream_event(call, "end", "", "left")

    def server_event(self, what: str, who: str = "", how: str = "", value: float = 0.0) -> None:
        self.history.record_server_event(what, who, how, value)


def shown(*seqs: int, low: int | None = None) -> tuple[str, dict[str, Any]]:
    return "record", {
        "from_seq": seqs[0] - 1 if low is None else low,
        "to_seq": seqs[-1],
        "records": [*seqs],
    }


def case(promise: str, sentence: str) -> Callable[[Case], Case]:
    def add(one: Case) -> Case:
        CASES.append((promise, sentence, one))
        return one

    return add


@case("durability", "gets no record 2, which was acknowledged")
def an_acknowledged_record_is_returned(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.append(3, 3)
    scenario.page(*([1, 2, 3] if is_valid else [1, 3]))


@case("durability", "gets no record 1")
def a_record_of_class_memory_survives_a_kill(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(durability="ephemeral" if is_valid else "memory")
    scenario.append(1, 1)
    scenario.server_event("kill", "everything")
    scenario.page(gap=(1, 1, "mixed")) if is_valid else scenario.page(head=1)


@case("durability", "record 1, which was acknowledged, is reported as lost")
def a_power_loss_loses_only_recent_records_of_class_disk(
    scenario: Scenario, is_valid: bool
) -> None:
    scenario.make(durability="disk")
    scenario.append(1, 1)
    scenario.wait(0.0 if is_valid else 30.0)
    scenario.server_event("power")
    scenario.page(gap=(1, 1, "mixed"))


@case("durability", "is reported as lost (mixed)")
def a_record_of_class_fsync_survives_a_power_loss(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(durability="disk" if is_valid else "fsync")
    scenario.append(1, 1)
    scenario.server_event("power")
    scenario.page(gap=(1, 1, "mixed"))


@case("durability", "a power loss removed 1 but kept 2")
def a_power_loss_leaves_a_prefix_of_the_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(durability="disk")
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.server_event("power")
    scenario.wait(3.0)
    scenario.page(*([1] if is_valid else [2]), gap=None if is_valid else (1, 1, "mixed"))


@case("durability", "1 to 1 are reported as lost without a cause")
def a_reported_loss_has_a_cause(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(cap_records=1 if is_valid else 0)
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.page(2, gap=(1, 1, "cap"))


@case("durability", "record 2, which was acknowledged, is reported as lost (cap)")
def a_cap_evicts_only_the_oldest_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(cap_records=2)
    for seq in (1, 2, 3):
        scenario.append(seq, seq)
    scenario.page(*([2, 3] if is_valid else [3]), gap=(1, 1 if is_valid else 2, "cap"))


@case("once", "is stored at [1, 2], but at most 1 is permitted")
def an_append_is_stored_once(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 0, status=None)
    scenario.put(T, 1, 1)
    scenario.put(T, 2, 1)
    scenario.page(1, *([] if is_valid else [2]))


@case("once", "the key k has the seqs [1] and [2]")
def a_known_key_returns_the_first_seqs(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(idempotency_window_ms=120_000 if not is_valid else 0)
    scenario.append(1, 1, idempotency_key="k")
    scenario.append(1, 2, idempotency_key="k")
    scenario.page(1, 2)


@case("once", "the key k is reused but not deduped")
def a_known_key_is_deduped(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1, idempotency_key="k")
    scenario.append(1, 1, idempotency_key="k", deduped=is_valid)


@case("once", "deduped, but was not used within its window")
def a_new_key_is_not_deduped(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1, idempotency_key="k", deduped=not is_valid)


@case("once", "deduped, but was not used within its window")
def an_expired_key_is_not_deduped(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1, idempotency_key="k")
    scenario.wait(119.0 if is_valid else 121.0)
    scenario.append(1, 1, idempotency_key="k", deduped=True)


@case("seqs", "is not notified of the missing record 2")
def seqs_have_no_holes(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.append(2, 2 if is_valid else 3)
    scenario.page(1, 2 if is_valid else 3)


@case("seqs", "a response to an append names")
def a_seq_belongs_to_one_record(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.page(1)
    scenario.append(2, 2 if is_valid else 1)


@case("seqs", "after record 2 was known")
def later_appends_get_higher_seqs(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1 if is_valid else 2)
    scenario.append(2, 2 if is_valid else 1)


@case("seqs", "$ts of record 2 is lower")
def timestamps_never_decrease(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.records[T, 2]["$ts"] = 2000 if is_valid else 500
    scenario.page(1, 2)


@case("seqs", "append of 2 records has 1")
def the_response_to_an_append_counts_all_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    began = scenario.append(1, 1, count=2)
    call = next(one for one in scenario.history.entries if getattr(one, "began", 0) == began)
    if not is_valid:
        call.answer |= {"last_seq": 1, "head_seq": 1, "count": 1}  # type: ignore[union-attr]


@case("durability", "gets no record 2, which was shown")
def a_batch_is_stored_completely(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 0, count=2, status=None)
    scenario.put(T, 1, 1, 0)
    scenario.put(T, 2, 1, 1)
    scenario.page(1, *([2] if is_valid else []), head=2)


@case("stable", "data of record 1")
def all_readers_receive_the_same_data(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 0, status=None)
    scenario.append(2, 0, status=None)
    scenario.put(T, 1, 1)
    scenario.page(1)
    scenario.put(T, 1, 1 if is_valid else 2)
    scenario.page(1)


@case("stable", "differs from its append")
def a_record_equals_its_append(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1, meta={"a": 1})
    scenario.records[T, 1]["meta"] = {"a": 1 if is_valid else 2}
    scenario.page(1)


@case("phantoms", "was never appended, or refused")
def a_refused_append_is_never_visible(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 0, status=None if is_valid else 429)
    scenario.put(T, 1, 1)
    scenario.page(1)


@case("phantoms", "belongs to ['d']")
def a_record_is_visible_only_in_its_topic(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.make(D)
    if is_valid:
        scenario.call("routers/r", {"source": D, "dest": T}, {"router": "r"}, 201, "PUT")
    scenario.append(1, 1, topic=D)
    scenario.put(T, 1, 1)
    scenario.page(1)


@case("readers", "not in order")
def the_records_of_a_page_are_in_order(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.page(*([1, 2] if is_valid else [2, 1]))


@case("durability", "gets no record 1, which was acknowledged, and no gap")
def a_gap_starts_after_the_cursor(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(cap_records=1)
    for seq in (1, 2, 3):
        scenario.append(seq, seq)
    scenario.page(3, gap=(1 if is_valid else 2, 2, "cap"))


@case("readers", "is returned after it was reported as lost")
def a_lost_record_is_never_returned_later(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(cap_records=1)
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.page(2, gap=(1, 1, "cap"))
    scenario.page(2, gap=(1, 1, "cap")) if is_valid else scenario.page(1, 2)


@case("readers", "has a wrong caught_up or lag")
def a_page_has_the_correct_lag(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.page(1, lag=0 if is_valid else 1)


@case("readers", "a node receives its own records")
def a_node_does_not_receive_its_own_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(dedupe_node=not is_valid)
    scenario.append(1, 1, node="n")
    answer = {"records": [{**scenario.records[T, 1], "$node": "n"}], "next_from_seq": 1}
    answer |= {"head_seq": 1, "caught_up": True, "lag": 0, "tombstone": None, "epoch": 1}
    scenario.call(f"topics/{T}/diff", {"from_seq": 0, "node": "n"}, answer)


@case("durability", "a reader of (1, 3] gets no record 2")
def a_stream_skips_no_record(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    for seq in (1, 2, 3):
        scenario.append(seq, seq)
    scenario.watch(shown(1), shown(2, 3) if is_valid else shown(3))


@case("readers", "a stream at 2 receives record from 1")
def a_stream_repeats_no_record(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    for seq in (1, 2, 3):
        scenario.append(seq, seq)
    scenario.watch(shown(1, 2), shown(3) if is_valid else shown(2, 3))


@case("durability", "a reader of (1, 3] gets no record 2")
def a_resumed_stream_skips_no_record(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    for seq in (1, 2, 3):
        scenario.append(seq, seq)
    scenario.watch(shown(1))
    scenario.follow(shown(2, 3) if is_valid else shown(3), last="id1")


@case("deletes", "record 1 is returned after it was deleted")
def a_record_deleted_by_seq_is_not_returned(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.call(f"topics/{T}/delete", {"before_seq": 2}, {"topic": T, "deleted": 1})
    scenario.page(2) if is_valid else scenario.page(1, 2)


@case("deletes", "record 1 is returned after it was deleted")
def a_record_deleted_by_tag_is_not_returned(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1, tag="red:1")
    scenario.append(2, 2, tag="blue")
    scenario.call(f"topics/{T}/delete", {"match": ["tag", "Glob", "red*"]}, {"topic": T})
    scenario.page(2) if is_valid else scenario.page(1, 2)


@case("deletes", "record 1 is returned after its age limit of 60000 ms")
def an_expired_record_is_not_returned(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(ttl_ms=60_000)
    scenario.append(1, 1)
    scenario.wait(59.0 if is_valid else 61.0)
    scenario.page(1)


@case("durability", "gets no record 2")
def a_delete_by_tag_removes_only_matching_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1, tag="red")
    scenario.append(2, 2, tag="blue")
    scenario.call(f"topics/{T}/delete", {"match": "red"}, None, None)
    scenario.page(2) if is_valid else scenario.page(1, head=2)


@case("epochs", "is returned again after its delete")
def a_recreated_topic_has_a_new_epoch(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.call(f"topics/{T}", None, {"topic": T, "deleted": True}, method="DELETE")
    scenario.epochs[T] = 1 if is_valid else 0
    scenario.make()


@case("epochs", "a reader of epoch 1 is not notified of another epoch")
def a_reader_of_an_old_epoch_is_notified(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.call(f"topics/{T}", None, {"deleted": True}, method="DELETE")
    scenario.make()
    scenario.append(2, 1)
    scenario.page(1, epoch_read=2 if is_valid else 1)


@case("access", "responds with 401, although the key is valid")
def a_valid_key_is_accepted(scenario: Scenario, is_valid: bool) -> None:
    scenario.history.record_server_event("key", "k", "added")
    scenario.wait(100.0)
    if is_valid:
        scenario.history.record_server_event("key", "k", "removed")
    scenario.call("topics", None, "unauthorized", 401, "GET", Authorization="Bearer k")


@case("access", "responds with 200, although its key was removed")
def a_removed_key_is_refused(scenario: Scenario, is_valid: bool) -> None:
    scenario.history.record_server_event("key", "k", "added")
    scenario.history.record_server_event("key", "k", "removed")
    scenario.wait(30.0 if is_valid else 100.0)
    scenario.call("topics", None, {"topics": []}, method="GET", Authorization="Bearer k")


@case("epochs", "without a delete in between")
def an_epoch_changes_only_by_a_delete(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.page(epoch=1 if is_valid else 2)


@case("epochs", "it responds after it was deleted")
def a_deleted_topic_does_not_respond(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.call(f"topics/{T}", None, {"topic": T, "deleted": True}, method="DELETE")
    if is_valid:
        scenario.make()
    scenario.page()


@case("config", "cap_records is 7, it was set to ['5']")
def a_setting_is_returned_as_it_was_set(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(cap_records=5)
    scenario.state(config={**DEFAULTS, "cap_records": 5 if is_valid else 7})


@case("config", "count of 3 records exceeds its cap 2")
def a_count_does_not_exceed_its_cap(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(cap_records=2)
    scenario.append(1, 1, count=3)
    scenario.state(config={**DEFAULTS, "cap_records": 2}, count=2 if is_valid else 3, head_seq=3)


@case("real time", "a reader sees the head 1 after record 2 was known")
def a_read_returns_a_head_that_was_known(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.page(*([1, 2] if is_valid else [1]))


@case("responses", "responds with 500 internal")
def no_response_is_an_internal_error(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 0, status=503)
    if not is_valid:
        scenario.call(f"topics/{T}/diff", {}, "internal", 500)


@case("responses", "409 not_a_queue, which is not documented")
def a_route_returns_only_documented_codes(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.call(f"topics/{T}/{'ack' if is_valid else 'diff'}", {}, "not_a_queue", 409)


@case("responses", "although the topic exists")
def an_existing_topic_is_found(scenario: Scenario, is_valid: bool) -> None:
    if not is_valid:
        scenario.make()
    scenario.call(f"topics/{T}/diff", {}, "topic_not_found", 404)


@case("queues", "is leased to v while w holds it")
def a_job_has_one_lease_holder(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.wait(31.0 if is_valid else 1.0)
    scenario.claim(1, node="v", count=2)


@case("queues", "is leased to v while w holds it")
def a_job_with_an_extended_lease_has_one_holder(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1, lease_ms=1000)
    scenario.settle("extend", 1, lease_ms=1000 if is_valid else 60_000)
    scenario.wait(2.0)
    scenario.claim(1, node="v", count=2)


@case("queues", "is leased to v while w holds it")
def durable_leases_survive_a_kill(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue", leases_durable=not is_valid)
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.server_event("kill", "everything")
    scenario.claim(1, node="v", count=1 if is_valid else 2)


@case("queues", "is leased to v while w holds it")
def leases_that_were_made_durable_survive_a_kill(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    if not is_valid:
        scenario.configure(Q, type="queue", leases_durable=True)
    scenario.append(2, 2, topic=Q)
    scenario.wait(5.0)
    scenario.server_event("kill", "everything")
    scenario.claim(1, node="v", count=1 if is_valid else 2)


@case("queues", "follows delivery")
def delivery_counts_survive_a_stop(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.server_event("stop", "everything")
    scenario.claim(1, node="v", count=2 if is_valid else 1)


@case("queues", "after a nack, or sooner")
def delays_of_nacks_survive_a_stop(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.settle("nack", 1, delay_ms=60_000)
    scenario.server_event("stop" if not is_valid else "kill", "everything")
    scenario.claim(1, count=2)


@case("queues", "is delivered after it was acked")
def an_acked_job_is_not_delivered(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.settle("ack", 1, skipped=is_valid)
    if is_valid:
        scenario.settle("nack", 1)
    scenario.wait(40.0)
    scenario.claim(1, count=2)


@case("queues", "whose lease has expired")
def a_job_with_an_expired_lease_cannot_be_acked(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    if is_valid:
        scenario.settle("extend", 1, lease_ms=60_000)
    scenario.wait(40.0)
    scenario.settle("ack", 1)


@case("queues", "delivery 1 of job 1 follows delivery 1")
def delivery_counts_increase(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.settle("nack", 1)
    scenario.claim(1, count=2 if is_valid else 1)


@case("queues", "is delivered 2 times, at most 1")
def deliveries_do_not_exceed_their_limit(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue", max_deliveries=2 if is_valid else 1, dead_letter=D)
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.settle("nack", 1)
    scenario.claim(1, count=2)


@case("queues", "which v holds")
def a_client_cannot_ack_the_job_of_another_client(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1, lease_ms=1000)
    scenario.wait(2.0)
    scenario.claim(1, node="v", count=2)
    scenario.settle("ack", 1, skipped=is_valid)


@case("queues", "which it never held")
def a_client_cannot_ack_with_an_unknown_lease_id(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.settle("ack", 1, lease_ids=["w1" if is_valid else "x1"])


@case("queues", "but its ack is skipped")
def a_lease_holder_can_ack_its_job(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    scenario.settle("ack", 1, skipped=not is_valid)


@case("queues", "before its delay of 5000 ms")
def a_job_is_not_delivered_before_its_delay(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q, delay_ms=5000)
    scenario.wait(6.0 if is_valid else 1.0)
    scenario.claim(1)


def add_dead_letter(scenario: Scenario, seq: int, source: int = 1, n: int = 1) -> None:
    meta = {"$dead_letter_from": Q, "$dead_letter_src_seq": source, "$dead_letter_deliveries": 1}
    scenario.put(D, seq, n, meta=meta)


@case("once", "is a dead letter at 1 and 2")
def a_dead_letter_is_stored_once(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue", max_deliveries=1, dead_letter=D)
    scenario.append(1, 1, topic=Q)
    scenario.append(2, 2, topic=Q)
    add_dead_letter(scenario, 1)
    add_dead_letter(scenario, 2, *((2, 2) if is_valid else ()))
    scenario.page(1, 2, topic=D)


@case("queues", "although it is a dead letter in d")
def a_dead_letter_is_not_delivered_by_its_queue(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue", max_deliveries=1, dead_letter=D)
    scenario.append(1, 1, topic=Q)
    add_dead_letter(scenario, 1)
    if is_valid:
        scenario.claim(1)
    scenario.page(1, topic=D)
    if not is_valid:
        scenario.claim(1)


@case("queues", "neither in its queue nor in ['d']")
def a_job_is_in_its_queue_or_in_its_dead_letter_topic(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue", max_deliveries=1, dead_letter=D)
    scenario.append(1, 1, topic=Q)
    scenario.claim(1)
    add_dead_letter(scenario, 1)
    scenario.server_event("quiet")
    scenario.page(topic=Q, head=1, client="final")
    scenario.page(*([1] if is_valid else []), topic=D, client="final")


def add_redrive(scenario: Scenario, moved: int, remaining: int, **body: Any) -> None:
    answer = {"topic": D, "moved": moved, "remaining": remaining, "skipped": 1}
    scenario.call(f"topics/{D}/redrive", body, answer)


@case("redrives", "moves 0, and 2 remain")
def a_redrive_moves_all_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(D)
    scenario.append(1, 1, topic=D, count=3)
    add_redrive(scenario, 2 if is_valid else 0, 0 if is_valid else 2)


@case("redrives", "moves 1, and 1 remain")
def a_redrive_is_incomplete_only_after_a_failure(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(D)
    scenario.append(1, 1, topic=D, count=3)
    if is_valid:
        scenario.server_event("kill", "shard 0")
        scenario.server_event("kill", "shard 1")
        scenario.server_event("kill", "shard 2")
    add_redrive(scenario, 1, 1)


@case("redrives", "is in ['d', 't'], at [1, 1]")
def a_moved_record_is_removed_from_its_source(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.make(D)
    scenario.append(1, 1, topic=D)
    add_redrive(scenario, 1, 0, to=T)
    scenario.put(T, 1, 1)
    scenario.server_event("quiet")
    scenario.page(1, client="final")
    scenario.page(*([] if is_valid else [1]), topic=D, head=1, client="final")


@case("redrives", "is in ['d', 't'], at [1, 1]")
def a_record_is_in_two_topics_only_after_a_failure(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.make(D)
    scenario.append(1, 1, topic=D)
    add_redrive(scenario, 1, 0, to=T)
    if is_valid:
        scenario.server_event("kill", "everything")
    scenario.put(T, 1, 1)
    scenario.wait(10.0)
    scenario.server_event("quiet")
    scenario.page(1, client="final")
    scenario.page(1, topic=D, client="final")


def add_backup(scenario: Scenario, **shown: list[int]) -> None:
    """Add a backup that is restored and has these records."""
    scenario.call("backup", method="GET")
    backup = scenario.history.entries[-1]
    for topic, seqs in shown.items():
        head = max((seq for name, seq in scenario.records if name == topic), default=0)
        scenario.page(*seqs, topic=topic, head=head, client="restored")
        page = scenario.history.entries[-1]
        assert isinstance(backup, Call)
        assert isinstance(page, Call)
        page.began, page.ended = backup.began, backup.ended


@case("durability", "gets no record 1, which was acknowledged")
def a_backup_contains_acknowledged_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    add_backup(scenario, t=[1] if is_valid else [])


@case("backups", "is in ['d', 't'], at [1, 1]")
def a_backup_contains_a_moved_record_once(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.make(D)
    scenario.append(1, 1, topic=D)
    add_redrive(scenario, 1, 0, to=T)
    scenario.put(T, 1, 1)
    add_backup(scenario, t=[1], d=[] if is_valid else [1])
    for topic in ("later", "even later"):
        scenario.wait(8.0)
        scenario.make(topic)
    scenario.server_event("power", "everything")  # long after the redrive


@case("queues", "job 1 is neither in its queue nor in ['t']")
def a_backup_contains_moved_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.make(D)
    scenario.append(1, 1, topic=D)
    add_redrive(scenario, 1, 0, to=T)
    if is_valid:
        scenario.put(T, 1, 1)
    add_backup(scenario, t=[1] if is_valid else [], d=[])


def add_router(scenario: Scenario, **fields: Any) -> None:
    scenario.make()
    scenario.make(D)
    body = {"source": T, "dest": D, **fields}
    scenario.call("routers/r", body, {"router": "r", "created": True}, 201, "PUT")


@case("routers", "has not copied record 2 of t")
def a_router_copies_all_records(scenario: Scenario, is_valid: bool) -> None:
    add_router(scenario)
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.put(D, 1, 1)
    scenario.put(D, 2, 2)
    scenario.server_event("quiet")
    scenario.page(1, 2, client="final")
    scenario.page(1, *([2] if is_valid else []), topic=D, client="final")


@case("routers", "has not copied record 1 of t")
def a_router_copies_all_matching_records(scenario: Scenario, is_valid: bool) -> None:
    add_router(scenario, filter=["tag", "Eq", "red"])
    scenario.append(1, 1, tag="blue" if is_valid else "red")
    scenario.server_event("quiet")
    scenario.page(1, client="final")
    scenario.page(topic=D, client="final")


@case("routers", "are in another order")
def copies_are_in_the_order_of_their_source(scenario: Scenario, is_valid: bool) -> None:
    add_router(scenario)
    scenario.append(1, 1)
    scenario.append(2, 2)
    scenario.put(D, 1, 1 if is_valid else 2)
    scenario.put(D, 2, 2 if is_valid else 1)
    scenario.server_event("quiet")
    scenario.page(1, 2, client="final")
    scenario.page(1, 2, topic=D, client="final")


@case("once", "is stored at 1 and 2")
def a_copy_of_an_exactly_once_router_is_stored_once(scenario: Scenario, is_valid: bool) -> None:
    add_router(scenario, guarantee="exactly_once")
    scenario.append(1, 1)
    scenario.append(2, 2)
    for seq in (1, 2):
        stamp = {"router": "r", "key": f"r:{seq if is_valid else 1}"}
        scenario.put(D, seq, seq, meta={"_topics_router": stamp})
    scenario.page(1, 2, topic=D)


@case("counters", "count is 2, but a read returns 1")
def a_count_equals_the_number_of_readable_records(scenario: Scenario, is_valid: bool) -> None:
    scenario.make()
    scenario.append(1, 1)
    scenario.server_event("quiet")
    fields: dict[str, Any] = {
        "config": DEFAULTS,
        "head_seq": 1,
        "earliest_seq": 1,
        "count": 1 if is_valid else 2,
    }
    scenario.state(client="final", **fields)
    scenario.page(1, client="final")


@case("counters", "differ from its 1 jobs")
def the_counters_of_a_queue_equal_its_stored_jobs(scenario: Scenario, is_valid: bool) -> None:
    scenario.make(Q, type="queue")
    scenario.append(1, 1, topic=Q)
    scenario.server_event("quiet")
    queue = {"ready": 1 if is_valid else 0, "in_flight": 0, "delayed": 0, "dead_lettered": 0}
    fields: dict[str, Any] = {"head_seq": 1, "earliest_seq": 1, "count": 1, "queue": queue}
    scenario.state(Q, "final", config={**DEFAULTS, "type": "queue"}, **fields)
    scenario.page(1, topic=Q, client="final")


IDS = [one.__name__.replace("_", " ") for _, _, one in CASES]


@pytest.mark.parametrize(("promise", "sentence", "build"), CASES, ids=IDS)
def test_the_judge_reports_exactly_the_broken_promise(
    promise: str, sentence: str, build: Case
) -> None:
    valid, invalid = Scenario(), Scenario()
    build(valid, True)
    build(invalid, False)
    assert judge(valid.history.entries, shards=SHARDS) == []
    found = judge(invalid.history.entries, shards=SHARDS)
    assert [one for one in found if one.promise == promise and sentence in one.sentence], found


def test_calls_without_responses_and_overlapping_calls_are_not_reported() -> None:
    scenario, rng = Scenario(), random.Random(1)
    scenario.make(durability="disk", cap_records=3)
    for n in range(1, 40):
        scenario.append(n, 0, status=rng.choice((None, 503)))
    scenario.call(f"topics/{T}/delete", {"before_seq": 1000}, None, None)
    scenario.call(f"topics/{T}", None, None, None, "DELETE")
    scenario.put(T, 1, 7)
    scenario.page(1)
    scenario.epochs[T] = 2
    scenario.page(1)
    scenario.page(head=9)
    assert judge(scenario.history.entries, shards=SHARDS) == []


def test_a_topic_that_is_recreated_during_a_call_is_not_reported() -> None:
    """A key is used before and after the deletion. The epoch of a job is unknown."""
    scenario = Scenario()
    scenario.make(Q, type="queue")
    (early, late), sent = ("a", "b"), {"records": [{"data": {"by": "c", "n": 1, "i": 0}}]}
    paths = f"topics/{Q}", f"topics/{Q}/claim"
    appends = [
        scenario.history.record_request(
            client, "POST", f"/v0/{paths[0]}", sent, **{"Idempotency-Key": "k"}
        )
        for client in (late, early)
    ]
    claim = scenario.history.record_request("w", "POST", f"/v0/{paths[1]}", {"node": "w", "max": 1})
    fields = {"topic": Q, "count": 1, "created": False, "deduped": False}
    seqs = {"first_seq": 2, "last_seq": 2, "head_seq": 2}
    scenario.history.record_response(appends[1], 200, fields | seqs)
    scenario.call(paths[0], None, {"topic": Q, "deleted": True}, method="DELETE")
    scenario.make(Q, type="queue")
    seqs = {"first_seq": 1, "last_seq": 1, "head_seq": 1}
    scenario.history.record_response(appends[0], 200, fields | seqs)
    scenario.put(Q, 1, 1)
    job = {**scenario.records[Q, 1], "lease_id": "w1", "deadline": 0, "deliveries": 1}
    scenario.history.record_response(claim, 200, {"topic": Q, "claimed": [job]})
    scenario.page(1, topic=Q)
    scenario.settle("ack", 1)
    assert judge(scenario.history.entries, shards=SHARDS) == []
