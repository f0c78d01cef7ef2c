"""Survey: the topics of real servers, and servers that do not reply."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.spark.live import Live, located
from topics.spark.client.http import RequestError, TopicsClient
from topics.spark.client.ranges import Loss
from topics.spark.source import survey as module
from topics.spark.source.connection import BadOption, RetryBudget, ServerError
from topics.spark.source.offsets import LATEST, Bounds, Position
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Head, Step
from topics.spark.source.survey import Survey

NOWHERE = "http://127.0.0.1:9"


@contextmanager
def survey(live: Live, **options: str) -> Iterator[Survey]:
    read = ReadOptions.parse({"servers": f"one={live.url}", **options}, "batch")
    with closing(Survey(read)) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "seq"),
    [("earliest", 10), ("latest", 50), ('{"t": 20}', 19), ('{"t": 51}', 50), ('{"t": 3}', 2)],
)
def test_an_offset_is_the_first_that_is_read_or_the_first_that_is_not(text: str, seq: int) -> None:
    read = ReadOptions.parse({"servers": NOWHERE, "subscribe": "t"}, "batch")
    with closing(Survey(read)) as opened:
        head = Head(earliest=11, head=50, epoch=7)
        assert opened.bound(Bounds.parse("o", text, LATEST), opened.servers[0], "t", head) == seq


def test_a_pattern_costs_one_request_and_detects_a_recreated_topic(
    live: Live, requests: Counter[TopicsClient]
) -> None:
    live.make("survey.m.a", 3)
    live.make("survey.m.b", 3)
    with survey(live, subscribePattern=r"survey\.m\..*") as opened:
        first = opened.heads(RetryBudget.FULL)["one"]
        client = opened._clients.of(opened.servers[0], RetryBudget.FULL)
        before = requests[client]
        live.delete("survey.m.a")
        live.make("survey.m.a", 3)  # as many records as before
        second = opened.heads(RetryBudget.FULL)["one"]
        assert requests[client] == before + 1
        with live.client() as other:
            epochs = {each.name: each.epoch for each in other.listing("survey.m.")}
    assert {name: head.epoch for name, head in second.items()} == epochs
    assert second["survey.m.b"] == first["survey.m.b"]
    assert second["survey.m.a"].epoch > first["survey.m.a"].epoch


def test_the_error_for_an_absent_named_topic_names_the_server(live: Live) -> None:
    with survey(live, subscribe="survey.absent") as opened:
        assert opened.heads(RetryBudget.PLANNING) == {"one": {}}
        with pytest.raises(ServerError, match=r'one \(http.*"survey.absent": topic_not_found'):
            list(opened.required())


def test_many_named_topics_are_listed_and_few_are_requested_one_by_one(
    live: Live, monkeypatch: pytest.MonkeyPatch, requests: Counter[TopicsClient]
) -> None:
    names = [live.make(f"survey.n.{number}", number) for number in range(12)]

    def costs(*named: str) -> list[int]:
        """Return the requests of two polls. Both return the right heads."""
        counts = []
        with survey(live, subscribe=",".join(named)) as opened:
            client = opened._clients.of(opened.servers[0], RetryBudget.FULL)
            for _ in range(2):
                before = requests[client]
                heads = opened.heads(RetryBudget.FULL)["one"]
                counts.append(requests[client] - before)
                assert {name: head.head for name, head in heads.items()} == {
                    name: names.index(name) for name in named if name in names
                }
        return counts

    assert costs(*names) == [12, 12]
    monkeypatch.setattr(module, "STATES_A_PAGE", 4)
    assert costs(*names) == [1, 1]
    assert costs(*names, "survey.n.absent") == [1, 1]
    monkeypatch.setattr(module, "LIST_SIZE", 9)
    assert costs(*names[:2], *names[8:10]) == [1 + 2, 4]  # the list has others between them


def test_a_key_that_may_not_read_a_topic_is_refused(
    locked: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATES_A_PAGE", 1)
    with (
        survey(locked, subscribe="spark.locked", apiKey="narrow") as opened,
        pytest.raises(ServerError, match=r'"spark\.locked": 403 forbidden'),
    ):
        list(opened.required())


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_partition_that_the_topic_does_not_have_are_refused(
    live: Live, option: str
) -> None:
    live.make("survey.place", 3)
    there, elsewhere = (
        {option: f'{{"survey.place": {{"{partition}": 2}}}}'} for partition in (0, 1)
    )
    with survey(live, subscribe="survey.place", **there) as opened:
        list(opened.required())
    with (
        survey(live, subscribePattern="survey.p.*", **elsewhere) as opened,
        pytest.raises(BadOption, match=r'partition 1 of topic "survey\.place", which is part'),
    ):
        list(opened.required())


def test_offsets_of_an_absent_topic_are_refused(live: Live) -> None:
    live.make("survey.there")
    given = {"startingOffsets": '{"survey.thera": 2}'}
    with (
        survey(live, subscribePattern=r"survey\.ther.", **given) as opened,
        pytest.raises(BadOption, match=r'names topic "survey\.thera", which does not exist'),
    ):
        list(opened.required())


def test_a_named_topic_is_found_on_any_server_and_refused_on_two(
    live: Live, restartable: Live, requests: Counter[TopicsClient]
) -> None:
    servers = f"a={live.url},b={restartable.url}"
    connection = ReadOptions.parse({"servers": servers, "topic": "x"}, "batch").connection
    other = next(
        name
        for name in (f"survey.own.{number}" for number in range(100))
        if connection.servers.owner(name).name == "b"
    )
    live.make(other, 3)  # before b was one of the servers
    with survey(live, servers=servers, subscribe=other) as opened:
        heads = opened.heads(RetryBudget.PLANNING)
        assert (heads["a"][other].head, heads["b"]) == (3, {})
        first, second = (
            opened._clients.of(server, RetryBudget.PLANNING) for server in opened.servers
        )
        before = requests[first], requests[second]
        opened.heads(RetryBudget.PLANNING)
        assert (requests[first], requests[second]) == (before[0] + 1, before[1])
        # The topic moves to the other server.
        live.delete(other)
        restartable.make(other, 1)
        assert opened.heads(RetryBudget.PLANNING) == {
            "a": {},
            "b": opened.heads(RetryBudget.QUICK)["b"],
        }
        assert located(connection, other).name == "b"
    live.make(other, 2)
    both = rf"409 topic_on_two_servers: it is on server a \({live.url}\) and on server b \(http"
    with (
        survey(live, servers=servers, subscribe=other) as opened,
        pytest.raises(RequestError, match=both),
    ):
        opened.heads(RetryBudget.PLANNING)
    with pytest.raises(RequestError, match=both):
        located(connection, other)


def test_a_read_by_name_requires_all_servers_at_its_start(live: Live) -> None:
    live.make("survey.half", 1)
    with (
        survey(live, servers=f"a={live.url},b={NOWHERE}", subscribe="survey.half") as opened,
        pytest.raises(ServerError, match=rf"server b \({NOWHERE}\): .*unreachable"),
    ):
        opened.heads(RetryBudget.PLANNING)


def test_losses_directly_after_a_position_are_found(live: Live) -> None:
    live.make("survey.loss", 10, cap_records=4)
    live.make("survey.deleted", 10)
    live.remove("survey.deleted", 5)
    with survey(live, subscribe="survey.loss,survey.deleted") as opened:
        heads = opened.heads(RetryBudget.FULL)["one"]

        def loss(topic: str, seq: int) -> Loss | None:
            return opened.loss_after(
                Step("one", topic, Position(seq, heads[topic].epoch), 10), RetryBudget.FULL
            )

        assert loss("survey.loss", 2) == Loss(3, 6, "cap", 4)
        assert loss("survey.loss", 6) is None
        assert heads["survey.deleted"].earliest == 5
        assert loss("survey.deleted", 0) is None
        # Another incarnation is detected by its epoch, not here.
        assert (
            opened.loss_after(Step("one", "survey.loss", Position(2, 1), 10), RetryBudget.FULL)
            is None
        )


def test_a_time_is_found_between_its_records(live: Live) -> None:
    live.make("survey.time")
    for number in range(1, 8):
        live.append("survey.time", [number])
        time.sleep(0.003)
    live.remove("survey.time", 3)
    with live.client() as client:
        stamps = {r.seq: r.ts for r in client.diff("survey.time", from_seq=0, limit=10).records}
    assert sorted(stamps) == [3, 4, 5, 6, 7]
    with survey(live, subscribe="survey.time") as opened:
        (server,) = opened.servers
        head = opened.heads(RetryBudget.FULL)["one"]["survey.time"]
        for seq, ts in stamps.items():
            assert opened.seq_before(server, "survey.time", head, ts) == seq - 1
            assert opened.seq_before(server, "survey.time", head, ts + 1) == seq
        assert opened.seq_before(server, "survey.time", head, 0) == 2
        empty = Head(1, 0, head.epoch)
        assert opened.seq_before(server, "survey.time", empty, 0) == 0
