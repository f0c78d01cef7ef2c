"""Survey: what real servers hold, and how long one is asked that does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.spark.live import Live
from topics.spark.client.ranges import Loss
from topics.spark.client.request_error import RequestError
from topics.spark.source import survey as module
from topics.spark.source.connection import BadOption, RetryBudget, ServerError
from topics.spark.source.offsets import Position
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Head, Step
from topics.spark.source.survey import Survey

NOWHERE = "http://127.0.0.1:9"


@contextmanager
def survey(live: Live, **options: str) -> Iterator[Survey]:
    read = ReadOptions.parse({"servers": f"one={live.url}", **options}, "batch")
    with closing(Survey(read)) as made:
        yield made


def test_a_pattern_costs_one_request_and_sees_a_topic_that_was_made_again(live: Live) -> None:
    live.make("survey.m.a", 3)
    live.make("survey.m.b", 3)
    with survey(live, subscribePattern=r"survey\.m\..*") as asked:
        first = asked.heads(RetryBudget.FULL)["one"]
        client = asked._client(asked.servers[0], RetryBudget.FULL)
        before = client.requests
        live.delete("survey.m.a")
        live.make("survey.m.a", 3)  # as many records as before
        second = asked.heads(RetryBudget.FULL)["one"]
        assert client.requests == before + 1
        with live.client() as other:
            epochs = {name: (other.state(name) or {})["epoch"] for name in second}
    assert {name: head.epoch for name, head in second.items()} == epochs
    assert second["survey.m.b"] == first["survey.m.b"]
    assert second["survey.m.a"].epoch > first["survey.m.a"].epoch


def test_a_named_topic_that_is_absent_is_told_with_its_server(live: Live) -> None:
    with survey(live, subscribe="survey.absent") as asked:
        assert asked.heads(RetryBudget.PLANNING) == {"one": {}}
        with pytest.raises(ServerError, match=r'one \(http.*"survey.absent": topic_not_found'):
            list(asked.required())


def test_many_named_topics_are_listed_and_few_are_asked_for_their_states(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [live.make(f"survey.n.{number}", number) for number in range(12)]

    def costs(*named: str) -> list[int]:
        """Requests of each look; what it finds is right."""
        counts = []
        with survey(live, subscribe=",".join(named)) as asked:
            client = asked._client(asked.servers[0], RetryBudget.FULL)
            for _ in range(2):
                before = client.requests
                heads = asked.heads(RetryBudget.FULL)["one"]
                counts.append(client.requests - before)
                assert {name: head.head for name, head in heads.items()} == {
                    name: names.index(name) for name in named if name in names
                }
        return counts

    assert costs(*names) == [12, 12]
    monkeypatch.setattr(module, "STATES_A_PAGE", 4)
    assert costs(*names) == [1, 1]
    assert costs(*names, "survey.n.absent") == [1, 1]
    monkeypatch.setattr(module, "LIST_SIZE", 9)
    assert costs(*names[:2], *names[8:10]) == [1 + 2, 4]  # others lie between


def test_a_key_that_may_not_see_a_topic_is_told(
    locked: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STATES_A_PAGE", 1)
    with (
        survey(locked, subscribe="spark.locked", apiKey="narrow") as asked,
        pytest.raises(ServerError, match=r'"spark\.locked": 403 forbidden'),
    ):
        list(asked.required())


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_partition_that_the_topic_does_not_have_are_refused(
    live: Live, option: str
) -> None:
    live.make("survey.place", 3)
    there, elsewhere = ({option: f'{{"survey.place": {{"{place}": 2}}}}'} for place in (0, 1))
    with survey(live, subscribe="survey.place", **there) as asked:
        list(asked.required())
    with (
        survey(live, subscribePattern="survey.p.*", **elsewhere) as asked,
        pytest.raises(BadOption, match=r'partition 1 of topic "survey\.place", which is part'),
    ):
        list(asked.required())


def test_offsets_of_a_topic_that_is_not_there_are_refused(live: Live) -> None:
    live.make("survey.there")
    given = {"startingOffsets": '{"survey.thera": 2}'}
    with (
        survey(live, subscribePattern=r"survey\.ther.", **given) as asked,
        pytest.raises(BadOption, match=r'names topic "survey\.thera", which does not exist'),
    ):
        list(asked.required())


def test_a_named_topic_is_found_on_any_server_and_refused_on_two(live: Live, mortal: Live) -> None:
    servers = f"a={live.url},b={mortal.url}"
    connection = ReadOptions.parse({"servers": servers, "topic": "x"}, "batch").connection
    other = next(
        name
        for name in (f"survey.own.{number}" for number in range(100))
        if connection.servers.owner(name).name == "b"
    )
    live.make(other, 3)  # before b was one of the servers
    with survey(live, servers=servers, subscribe=other) as asked:
        heads = asked.heads(RetryBudget.PLANNING)
        assert (heads["a"][other].head, heads["b"]) == (3, {})
        first, second = (asked._client(server, RetryBudget.PLANNING) for server in asked.servers)
        before = first.requests, second.requests
        asked.heads(RetryBudget.PLANNING)
        assert (first.requests, second.requests) == (before[0] + 1, before[1])
        # It is followed to the other server.
        live.delete(other)
        mortal.make(other, 1)
        assert asked.heads(RetryBudget.PLANNING) == {
            "a": {},
            "b": asked.heads(RetryBudget.QUICK)["b"],
        }
        assert connection.locate(other).name == "b"
    live.make(other, 2)
    both = rf"409 topic_on_two_servers: it is on server a \({live.url}\) and on server b \(http"
    with (
        survey(live, servers=servers, subscribe=other) as asked,
        pytest.raises(RequestError, match=both),
    ):
        asked.heads(RetryBudget.PLANNING)
    with pytest.raises(RequestError, match=both):
        connection.locate(other)


def test_a_read_by_name_asks_all_servers_first(live: Live) -> None:
    live.make("survey.half", 1)
    with (
        survey(live, servers=f"a={live.url},b={NOWHERE}", subscribe="survey.half") as asked,
        pytest.raises(ServerError, match=rf"server b \({NOWHERE}\): .*unreachable"),
    ):
        asked.heads(RetryBudget.PLANNING)


def test_losses_right_behind_a_position_are_told(live: Live) -> None:
    live.make("survey.loss", 10, cap_records=4)
    live.make("survey.deleted", 10)
    live.remove("survey.deleted", 5)
    with survey(live, subscribe="survey.loss,survey.deleted") as asked:
        heads = asked.heads(RetryBudget.FULL)["one"]

        def loss(topic: str, seq: int) -> Loss | None:
            return asked.loss_after(
                Step("one", topic, Position(seq, heads[topic].epoch), 10), RetryBudget.FULL
            )

        assert loss("survey.loss", 2) == Loss(3, 6, "cap", 4)
        assert loss("survey.loss", 6) is None
        assert heads["survey.deleted"].earliest == 5
        assert loss("survey.deleted", 0) is None
        # Another incarnation is noticed by its epoch, not here.
        assert (
            asked.loss_after(Step("one", "survey.loss", Position(2, 1), 10), RetryBudget.FULL)
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
    with survey(live, subscribe="survey.time") as asked:
        (server,) = asked.servers
        head = asked.heads(RetryBudget.FULL)["one"]["survey.time"]
        for seq, ts in stamps.items():
            assert asked.seq_before(server, "survey.time", head, ts) == seq - 1
            assert asked.seq_before(server, "survey.time", head, ts + 1) == seq
        assert asked.seq_before(server, "survey.time", head, 0) == 2
        empty = Head(1, 0, head.epoch)
        assert asked.seq_before(server, "survey.time", empty, 0) == 0
