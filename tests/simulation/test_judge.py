"""The judge: for each promise one history that keeps it, and a variant that breaks it."""

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
Case = Callable[["Story", bool], None]
CASES: list[tuple[str, str, Case]] = []


class Story:
    """A history that a test writes. Every call takes 10 ms. The epoch is 1 until a topic is
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
def an_acknowledged_record(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.append(2, 2)
    story.append(3, 3)
    story.page(*([1, 2, 3] if right else [1, 3]))


@case("durability", "gets no record 1")
def a_class_that_outlives_kills(story: Story, right: bool) -> None:
    story.make(durability="ephemeral" if right else "memory")
    story.append(1, 1)
    story.server_event("kill", "everything")
    story.page(gap=(1, 1, "mixed")) if right else story.page(head=1)


@case("durability", "record 1, which was acknowledged, is reported as lost")
def what_only_a_power_loss_takes(story: Story, right: bool) -> None:
    story.make(durability="disk")
    story.append(1, 1)
    story.wait(0.0 if right else 30.0)
    story.server_event("power")
    story.page(gap=(1, 1, "mixed"))


@case("durability", "is reported as lost (mixed)")
def what_a_power_loss_does_not_take(story: Story, right: bool) -> None:
    story.make(durability="disk" if right else "fsync")
    story.append(1, 1)
    story.server_event("power")
    story.page(gap=(1, 1, "mixed"))


@case("durability", "a power loss removed 1 but kept 2")
def a_prefix_that_survives(story: Story, right: bool) -> None:
    story.make(durability="disk")
    story.append(1, 1)
    story.append(2, 2)
    story.server_event("power")
    story.wait(3.0)
    story.page(*([1] if right else [2]), gap=None if right else (1, 1, "mixed"))


@case("durability", "1 to 1 are reported as lost without a cause")
def a_loss_without_a_cause(story: Story, right: bool) -> None:
    story.make(cap_records=1 if right else 0)
    story.append(1, 1)
    story.append(2, 2)
    story.page(2, gap=(1, 1, "cap"))


@case("durability", "record 2, which was acknowledged, is reported as lost (cap)")
def what_a_cap_leaves(story: Story, right: bool) -> None:
    story.make(cap_records=2)
    for seq in (1, 2, 3):
        story.append(seq, seq)
    story.page(*([2, 3] if right else [3]), gap=(1, 1 if right else 2, "cap"))


@case("once", "is stored at [1, 2], but at most 1 is permitted")
def one_append(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 0, status=None)
    story.put(T, 1, 1)
    story.put(T, 2, 1)
    story.page(1, *([] if right else [2]))


@case("once", "the key k has the seqs [1] and [2]")
def a_key(story: Story, right: bool) -> None:
    story.make(idempotency_window_ms=120_000 if not right else 0)
    story.append(1, 1, idempotency_key="k")
    story.append(1, 2, idempotency_key="k")
    story.page(1, 2)


@case("once", "the key k is reused but not deduped")
def a_key_that_is_known(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1, idempotency_key="k")
    story.append(1, 1, idempotency_key="k", deduped=right)


@case("once", "deduped, but was not used within its window")
def a_key_that_is_new(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1, idempotency_key="k", deduped=not right)


@case("once", "deduped, but was not used within its window")
def a_key_that_is_old(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1, idempotency_key="k")
    story.wait(119.0 if right else 121.0)
    story.append(1, 1, idempotency_key="k", deduped=True)


@case("seqs", "is not notified of the missing record 2")
def seqs_without_holes(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.append(2, 2 if right else 3)
    story.page(1, 2 if right else 3)


@case("seqs", "a response to an append names")
def one_record_for_a_seq(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.page(1)
    story.append(2, 2 if right else 1)


@case("seqs", "after record 2 was known")
def seqs_that_go_up(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1 if right else 2)
    story.append(2, 2 if right else 1)


@case("seqs", "$ts of record 2 is lower")
def times_that_go_up(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.append(2, 2)
    story.records[T, 2]["$ts"] = 2000 if right else 500
    story.page(1, 2)


@case("seqs", "append of 2 records has 1")
def a_whole_batch(story: Story, right: bool) -> None:
    story.make()
    began = story.append(1, 1, count=2)
    call = next(one for one in story.history.entries if getattr(one, "began", 0) == began)
    if not right:
        call.answer |= {"last_seq": 1, "head_seq": 1, "count": 1}  # type: ignore[union-attr]


@case("durability", "gets no record 2, which was shown")
def a_batch_that_is_whole(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 0, count=2, status=None)
    story.put(T, 1, 1, 0)
    story.put(T, 2, 1, 1)
    story.page(1, *([2] if right else []), head=2)


@case("stable", "data of record 1")
def the_same_bytes(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 0, status=None)
    story.append(2, 0, status=None)
    story.put(T, 1, 1)
    story.page(1)
    story.put(T, 1, 1 if right else 2)
    story.page(1)


@case("stable", "differs from its append")
def the_bytes_that_were_sent(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1, meta={"a": 1})
    story.records[T, 1]["meta"] = {"a": 1 if right else 2}
    story.page(1)


@case("phantoms", "was never appended, or refused")
def a_refused_append(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 0, status=None if right else 429)
    story.put(T, 1, 1)
    story.page(1)


@case("phantoms", "belongs to ['d']")
def a_record_of_another_topic(story: Story, right: bool) -> None:
    story.make()
    story.make(D)
    if right:
        story.call("routers/r", {"source": D, "dest": T}, {"router": "r"}, 201, "PUT")
    story.append(1, 1, topic=D)
    story.put(T, 1, 1)
    story.page(1)


@case("readers", "not in order")
def a_page_in_order(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.append(2, 2)
    story.page(*([1, 2] if right else [2, 1]))


@case("durability", "gets no record 1, which was acknowledged, and no gap")
def a_gap_from_the_cursor(story: Story, right: bool) -> None:
    story.make(cap_records=1)
    for seq in (1, 2, 3):
        story.append(seq, seq)
    story.page(3, gap=(1 if right else 2, 2, "cap"))


@case("readers", "is returned after it was reported as lost")
def a_loss_for_good(story: Story, right: bool) -> None:
    story.make(cap_records=1)
    story.append(1, 1)
    story.append(2, 2)
    story.page(2, gap=(1, 1, "cap"))
    story.page(2, gap=(1, 1, "cap")) if right else story.page(1, 2)


@case("readers", "has a wrong caught_up or lag")
def a_page_that_knows_where_it_is(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.page(1, lag=0 if right else 1)


@case("readers", "a node receives its own records")
def records_of_others(story: Story, right: bool) -> None:
    story.make(dedupe_node=not right)
    story.append(1, 1, node="n")
    answer = {"records": [{**story.records[T, 1], "$node": "n"}], "next_from_seq": 1}
    answer |= {"head_seq": 1, "caught_up": True, "lag": 0, "tombstone": None, "epoch": 1}
    story.call(f"topics/{T}/diff", {"from_seq": 0, "node": "n"}, answer)


@case("durability", "a reader of (1, 3] gets no record 2")
def a_stream_that_leaves_out_nothing(story: Story, right: bool) -> None:
    story.make()
    for seq in (1, 2, 3):
        story.append(seq, seq)
    story.watch(shown(1), shown(2, 3) if right else shown(3))


@case("readers", "a stream at 2 receives record from 1")
def a_stream_that_repeats_nothing(story: Story, right: bool) -> None:
    story.make()
    for seq in (1, 2, 3):
        story.append(seq, seq)
    story.watch(shown(1, 2), shown(3) if right else shown(2, 3))


@case("durability", "a reader of (1, 3] gets no record 2")
def a_stream_that_is_resumed(story: Story, right: bool) -> None:
    story.make()
    for seq in (1, 2, 3):
        story.append(seq, seq)
    story.watch(shown(1))
    story.follow(shown(2, 3) if right else shown(3), last="id1")


@case("deletes", "record 1 is returned after it was deleted")
def a_delete_by_seq(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.append(2, 2)
    story.call(f"topics/{T}/delete", {"before_seq": 2}, {"topic": T, "deleted": 1})
    story.page(2) if right else story.page(1, 2)


@case("deletes", "record 1 is returned after it was deleted")
def a_delete_by_tag(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1, tag="red:1")
    story.append(2, 2, tag="blue")
    story.call(f"topics/{T}/delete", {"match": ["tag", "Glob", "red*"]}, {"topic": T})
    story.page(2) if right else story.page(1, 2)


@case("deletes", "record 1 is returned after its age limit of 60000 ms")
def an_age(story: Story, right: bool) -> None:
    story.make(ttl_ms=60_000)
    story.append(1, 1)
    story.wait(59.0 if right else 61.0)
    story.page(1)


@case("durability", "gets no record 2")
def a_delete_that_takes_no_more(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1, tag="red")
    story.append(2, 2, tag="blue")
    story.call(f"topics/{T}/delete", {"match": "red"}, None, None)
    story.page(2) if right else story.page(1, head=2)


@case("epochs", "is returned again after its delete")
def an_epoch_that_is_new(story: Story, right: bool) -> None:
    story.make()
    story.call(f"topics/{T}", None, {"topic": T, "deleted": True}, method="DELETE")
    story.epochs[T] = 1 if right else 0
    story.make()


@case("epochs", "a reader of epoch 1 is not notified of another epoch")
def a_reader_of_an_epoch_that_is_over(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.call(f"topics/{T}", None, {"deleted": True}, method="DELETE")
    story.make()
    story.append(2, 1)
    story.page(1, epoch_read=2 if right else 1)


@case("access", "responds with 401, although the key is valid")
def a_good_key(story: Story, right: bool) -> None:
    story.history.record_server_event("key", "k", "added")
    story.wait(100.0)
    if right:
        story.history.record_server_event("key", "k", "removed")
    story.call("topics", None, "unauthorized", 401, "GET", Authorization="Bearer k")


@case("access", "responds with 200, although its key was removed")
def a_key_that_was_removed(story: Story, right: bool) -> None:
    story.history.record_server_event("key", "k", "added")
    story.history.record_server_event("key", "k", "removed")
    story.wait(30.0 if right else 100.0)
    story.call("topics", None, {"topics": []}, method="GET", Authorization="Bearer k")


@case("epochs", "without a delete in between")
def an_epoch_that_stays(story: Story, right: bool) -> None:
    story.make()
    story.page(epoch=1 if right else 2)


@case("epochs", "it responds after it was deleted")
def a_topic_that_is_gone(story: Story, right: bool) -> None:
    story.make()
    story.call(f"topics/{T}", None, {"topic": T, "deleted": True}, method="DELETE")
    if right:
        story.make()
    story.page()


@case("config", "cap_records is 7, it was set to ['5']")
def a_setting(story: Story, right: bool) -> None:
    story.make(cap_records=5)
    story.state(config={**DEFAULTS, "cap_records": 5 if right else 7})


@case("config", "count of 3 records exceeds its cap 2")
def a_cap(story: Story, right: bool) -> None:
    story.make(cap_records=2)
    story.append(1, 1, count=3)
    story.state(config={**DEFAULTS, "cap_records": 2}, count=2 if right else 3, head_seq=3)


@case("real time", "a reader sees the head 1 after record 2 was known")
def a_read_of_what_was_written(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.append(2, 2)
    story.page(*([1, 2] if right else [1]))


@case("responses", "responds with 500 internal")
def no_errors_of_the_server(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 0, status=503)
    if not right:
        story.call(f"topics/{T}/diff", {}, "internal", 500)


@case("responses", "409 not_a_queue, which is not documented")
def codes_of_the_route(story: Story, right: bool) -> None:
    story.make()
    story.call(f"topics/{T}/{'ack' if right else 'diff'}", {}, "not_a_queue", 409)


@case("responses", "although the topic exists")
def no_404_for_what_is_there(story: Story, right: bool) -> None:
    if not right:
        story.make()
    story.call(f"topics/{T}/diff", {}, "topic_not_found", 404)


@case("queues", "is leased to v while w holds it")
def one_holder(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.wait(31.0 if right else 1.0)
    story.claim(1, node="v", count=2)


@case("queues", "is leased to v while w holds it")
def one_holder_over_an_extend(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1, lease_ms=1000)
    story.settle("extend", 1, lease_ms=1000 if right else 60_000)
    story.wait(2.0)
    story.claim(1, node="v", count=2)


@case("queues", "is leased to v while w holds it")
def leases_that_outlive_a_kill(story: Story, right: bool) -> None:
    story.make(Q, type="queue", leases_durable=not right)
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.server_event("kill", "everything")
    story.claim(1, node="v", count=1 if right else 2)


@case("queues", "is leased to v while w holds it")
def leases_that_have_become_durable(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    if not right:
        story.configure(Q, type="queue", leases_durable=True)
    story.append(2, 2, topic=Q)
    story.wait(5.0)
    story.server_event("kill", "everything")
    story.claim(1, node="v", count=1 if right else 2)


@case("queues", "follows delivery")
def counts_that_outlive_a_stop(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.server_event("stop", "everything")
    story.claim(1, node="v", count=2 if right else 1)


@case("queues", "after a nack, or sooner")
def delays_that_outlive_a_stop(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.settle("nack", 1, delay_ms=60_000)
    story.server_event("stop" if not right else "kill", "everything")
    story.claim(1, count=2)


@case("queues", "is delivered after it was acked")
def an_ack(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.settle("ack", 1, skipped=right)
    if right:
        story.settle("nack", 1)
    story.wait(40.0)
    story.claim(1, count=2)


@case("queues", "whose lease has expired")
def an_ack_that_is_too_late(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    if right:
        story.settle("extend", 1, lease_ms=60_000)
    story.wait(40.0)
    story.settle("ack", 1)


@case("queues", "delivery 1 of job 1 follows delivery 1")
def deliveries_that_count(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.settle("nack", 1)
    story.claim(1, count=2 if right else 1)


@case("queues", "is delivered 2 times, at most 1")
def the_most_deliveries(story: Story, right: bool) -> None:
    story.make(Q, type="queue", max_deliveries=2 if right else 1, dead_letter=D)
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.settle("nack", 1)
    story.claim(1, count=2)


@case("queues", "which v holds")
def an_ack_of_a_job_of_others(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1, lease_ms=1000)
    story.wait(2.0)
    story.claim(1, node="v", count=2)
    story.settle("ack", 1, skipped=right)


@case("queues", "which it never held")
def an_ack_of_a_stale_lease(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.settle("ack", 1, lease_ids=["w1" if right else "x1"])


@case("queues", "but its ack is skipped")
def an_ack_of_who_holds(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.claim(1)
    story.settle("ack", 1, skipped=not right)


@case("queues", "before its delay of 5000 ms")
def a_delay(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q, delay_ms=5000)
    story.wait(6.0 if right else 1.0)
    story.claim(1)


def dead_letter(story: Story, seq: int, source: int = 1, n: int = 1) -> None:
    meta = {"$dead_letter_from": Q, "$dead_letter_src_seq": source, "$dead_letter_deliveries": 1}
    story.put(D, seq, n, meta=meta)


@case("once", "is a dead letter at 1 and 2")
def a_dead_letter(story: Story, right: bool) -> None:
    story.make(Q, type="queue", max_deliveries=1, dead_letter=D)
    story.append(1, 1, topic=Q)
    story.append(2, 2, topic=Q)
    dead_letter(story, 1)
    dead_letter(story, 2, *((2, 2) if right else ()))
    story.page(1, 2, topic=D)


@case("queues", "although it is a dead letter in d")
def a_job_in_one_place(story: Story, right: bool) -> None:
    story.make(Q, type="queue", max_deliveries=1, dead_letter=D)
    story.append(1, 1, topic=Q)
    dead_letter(story, 1)
    if right:
        story.claim(1)
    story.page(1, topic=D)
    if not right:
        story.claim(1)


@case("queues", "neither in its queue nor in ['d']")
def a_job_that_is_somewhere(story: Story, right: bool) -> None:
    story.make(Q, type="queue", max_deliveries=1, dead_letter=D)
    story.append(1, 1, topic=Q)
    story.claim(1)
    dead_letter(story, 1)
    story.server_event("quiet")
    story.page(topic=Q, head=1, client="final")
    story.page(*([1] if right else []), topic=D, client="final")


def redriven(story: Story, moved: int, remaining: int, **body: Any) -> None:
    answer = {"topic": D, "moved": moved, "remaining": remaining, "skipped": 1}
    story.call(f"topics/{D}/redrive", body, answer)


@case("redrives", "moves 0, and 2 remain")
def a_redrive_that_is_complete(story: Story, right: bool) -> None:
    story.make(D)
    story.append(1, 1, topic=D, count=3)
    redriven(story, 2 if right else 0, 0 if right else 2)


@case("redrives", "moves 1, and 1 remain")
def a_redrive_that_fails(story: Story, right: bool) -> None:
    story.make(D)
    story.append(1, 1, topic=D, count=3)
    if right:
        story.server_event("kill", "shard 0")
        story.server_event("kill", "shard 1")
        story.server_event("kill", "shard 2")
    redriven(story, 1, 1)


@case("redrives", "is in ['d', 't'], at [1, 1]")
def a_record_that_is_moved(story: Story, right: bool) -> None:
    story.make()
    story.make(D)
    story.append(1, 1, topic=D)
    redriven(story, 1, 0, to=T)
    story.put(T, 1, 1)
    story.server_event("quiet")
    story.page(1, client="final")
    story.page(*([] if right else [1]), topic=D, head=1, client="final")


@case("redrives", "is in ['d', 't'], at [1, 1]")
def a_record_whose_redrive_has_failed(story: Story, right: bool) -> None:
    story.make()
    story.make(D)
    story.append(1, 1, topic=D)
    redriven(story, 1, 0, to=T)
    if right:
        story.server_event("kill", "everything")
    story.put(T, 1, 1)
    story.wait(10.0)
    story.server_event("quiet")
    story.page(1, client="final")
    story.page(1, topic=D, client="final")


def restored(story: Story, **shown: list[int]) -> None:
    """Add a backup that is restored and has these records."""
    story.call("backup", method="GET")
    backup = story.history.entries[-1]
    for topic, seqs in shown.items():
        head = max((seq for name, seq in story.records if name == topic), default=0)
        story.page(*seqs, topic=topic, head=head, client="restored")
        page = story.history.entries[-1]
        assert isinstance(backup, Call)
        assert isinstance(page, Call)
        page.began, page.ended = backup.began, backup.ended


@case("durability", "gets no record 1, which was acknowledged")
def a_record_of_a_backup(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    restored(story, t=[1] if right else [])


@case("backups", "is in ['d', 't'], at [1, 1]")
def a_move_and_a_backup(story: Story, right: bool) -> None:
    story.make()
    story.make(D)
    story.append(1, 1, topic=D)
    redriven(story, 1, 0, to=T)
    story.put(T, 1, 1)
    restored(story, t=[1], d=[] if right else [1])
    for topic in ("later", "even later"):
        story.wait(8.0)
        story.make(topic)
    story.server_event("power", "everything")  # long after the redrive


@case("queues", "job 1 is neither in its queue nor in ['t']")
def a_moved_record_of_a_backup(story: Story, right: bool) -> None:
    story.make()
    story.make(D)
    story.append(1, 1, topic=D)
    redriven(story, 1, 0, to=T)
    if right:
        story.put(T, 1, 1)
    restored(story, t=[1] if right else [], d=[])


def routed(story: Story, **fields: Any) -> None:
    story.make()
    story.make(D)
    body = {"source": T, "dest": D, **fields}
    story.call("routers/r", body, {"router": "r", "created": True}, 201, "PUT")


@case("routers", "has not copied record 2 of t")
def all_copies(story: Story, right: bool) -> None:
    routed(story)
    story.append(1, 1)
    story.append(2, 2)
    story.put(D, 1, 1)
    story.put(D, 2, 2)
    story.server_event("quiet")
    story.page(1, 2, client="final")
    story.page(1, *([2] if right else []), topic=D, client="final")


@case("routers", "has not copied record 1 of t")
def copies_of_a_filter(story: Story, right: bool) -> None:
    routed(story, filter=["tag", "Eq", "red"])
    story.append(1, 1, tag="blue" if right else "red")
    story.server_event("quiet")
    story.page(1, client="final")
    story.page(topic=D, client="final")


@case("routers", "are in another order")
def copies_in_order(story: Story, right: bool) -> None:
    routed(story)
    story.append(1, 1)
    story.append(2, 2)
    story.put(D, 1, 1 if right else 2)
    story.put(D, 2, 2 if right else 1)
    story.server_event("quiet")
    story.page(1, 2, client="final")
    story.page(1, 2, topic=D, client="final")


@case("once", "is stored at 1 and 2")
def a_copy_that_is_stamped(story: Story, right: bool) -> None:
    routed(story, guarantee="exactly_once")
    story.append(1, 1)
    story.append(2, 2)
    for seq in (1, 2):
        stamp = {"router": "r", "key": f"r:{seq if right else 1}"}
        story.put(D, seq, seq, meta={"_topics_router": stamp})
    story.page(1, 2, topic=D)


@case("counters", "count is 2, but a read returns 1")
def a_counter(story: Story, right: bool) -> None:
    story.make()
    story.append(1, 1)
    story.server_event("quiet")
    fields: dict[str, Any] = {
        "config": DEFAULTS,
        "head_seq": 1,
        "earliest_seq": 1,
        "count": 1 if right else 2,
    }
    story.state(client="final", **fields)
    story.page(1, client="final")


@case("counters", "differ from its 1 jobs")
def counters_of_a_queue(story: Story, right: bool) -> None:
    story.make(Q, type="queue")
    story.append(1, 1, topic=Q)
    story.server_event("quiet")
    queue = {"ready": 1 if right else 0, "in_flight": 0, "delayed": 0, "dead_lettered": 0}
    fields: dict[str, Any] = {"head_seq": 1, "earliest_seq": 1, "count": 1, "queue": queue}
    story.state(Q, "final", config={**DEFAULTS, "type": "queue"}, **fields)
    story.page(1, topic=Q, client="final")


IDS = [one.__name__.replace("_", " ") for _, _, one in CASES]


@pytest.mark.parametrize(("promise", "sentence", "told"), CASES, ids=IDS)
def test_the_judge_reports_exactly_the_broken_promise(
    promise: str, sentence: str, fields: Case
) -> None:
    right, wrong = Story(), Story()
    fields(right, True)
    fields(wrong, False)
    assert judge(right.history.entries, shards=SHARDS) == []
    found = judge(wrong.history.entries, shards=SHARDS)
    assert [one for one in found if one.promise == promise and sentence in one.sentence], found


def test_calls_without_responses_and_overlapping_calls_are_not_reported() -> None:
    story, rng = Story(), random.Random(1)
    story.make(durability="disk", cap_records=3)
    for n in range(1, 40):
        story.append(n, 0, status=rng.choice((None, 503)))
    story.call(f"topics/{T}/delete", {"before_seq": 1000}, None, None)
    story.call(f"topics/{T}", None, None, None, "DELETE")
    story.put(T, 1, 7)
    story.page(1)
    story.epochs[T] = 2
    story.page(1)
    story.page(head=9)
    assert judge(story.history.entries, shards=SHARDS) == []


def test_a_topic_that_is_recreated_during_a_call_is_not_reported() -> None:
    """A key is used before and after. The epoch of a job is unknown."""
    story = Story()
    story.make(Q, type="queue")
    (early, late), sent = ("a", "b"), {"records": [{"data": {"by": "c", "n": 1, "i": 0}}]}
    paths = f"topics/{Q}", f"topics/{Q}/claim"
    appends = [
        story.history.record_request(
            client, "POST", f"/v0/{paths[0]}", sent, **{"Idempotency-Key": "k"}
        )
        for client in (late, early)
    ]
    claim = story.history.record_request("w", "POST", f"/v0/{paths[1]}", {"node": "w", "max": 1})
    fields = {"topic": Q, "count": 1, "created": False, "deduped": False}
    seqs = {"first_seq": 2, "last_seq": 2, "head_seq": 2}
    story.history.record_response(appends[1], 200, fields | seqs)
    story.call(paths[0], None, {"topic": Q, "deleted": True}, method="DELETE")
    story.make(Q, type="queue")
    seqs = {"first_seq": 1, "last_seq": 1, "head_seq": 1}
    story.history.record_response(appends[0], 200, fields | seqs)
    story.put(Q, 1, 1)
    job = {**story.records[Q, 1], "lease_id": "w1", "deadline": 0, "deliveries": 1}
    story.history.record_response(claim, 200, {"topic": Q, "claimed": [job]})
    story.page(1, topic=Q)
    story.settle("ack", 1)
    assert judge(story.history.entries, shards=SHARDS) == []
