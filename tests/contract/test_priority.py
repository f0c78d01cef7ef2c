"""Priority of topics, and what waits for others (§0.9, §0.10)."""

from __future__ import annotations

from typing import Any

from tests.contract.test_ws_batches import answers, publish, say_at_once
from tests.support.api import Api, ok
from tests.support.queues import Queue
from tests.support.ws import Socket

TOPICS, ROUNDS = 250, 4  # as many publishes as a WebSocket may have unanswered


def waited_ms(answer: Any) -> float:
    found: float = answer["performance"]["throttle_wait_ms"]
    return found


def test_nothing_is_parked_while_the_server_is_idle(api: Api, socket: Socket, topic: str) -> None:
    told = [ok(api.append(topic, *range(8)), 201), ok(api.append(topic, 1))]
    told += [ok(api.diff(topic, from_seq=seq, limit=1)) for seq in range(8)]
    told.append(socket.ask("publish", "1", topic=topic, records=[{"data": 1}]))
    told.append(Queue.create(api, f"{topic}.queue", 1).claimed())
    assert [waited_ms(answer) for answer in told] == [0.0] * len(told)


def test_a_read_makes_a_topic_urgent_for_a_while(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    assert api.state(topic)["effective_priority"] == 0, "nobody has read it"
    ok(api.diff(topic))
    assert 450 <= api.state(topic)["effective_priority"] <= 500
    ok(api.put(topic, {"auto_priority": False}))
    assert api.state(topic)["effective_priority"] == 0
    ok(api.put(topic, {"priority": 2000}))
    assert api.state(topic)["effective_priority"] == 1000


def test_many_publishes_wait_for_each_other_and_keep_their_order(
    socket: Socket, new_name: Any
) -> None:
    topics = [new_name() for _ in range(TOPICS)]
    config = {"durability": "ephemeral"}
    say_at_once(
        socket,
        [
            publish(f"{number}", name, number, config=config)
            for number in range(ROUNDS)
            for name in topics
        ],
    )
    told = answers(socket, TOPICS * ROUNDS)
    assert {answer["op"] for answer in told} == {"ack"}
    seqs: dict[str, list[tuple[str, int]]] = {name: [] for name in topics}
    for answer in told:
        seqs[answer["topic"]].append((answer["request_id"], answer["last_seq"]))
    in_order = [(f"{number}", number + 1) for number in range(ROUNDS)]
    assert all(found == in_order for found in seqs.values())
    assert max(map(waited_ms, told)) > 0.0
