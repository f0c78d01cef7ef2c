"""Queues by band: weighted turns."""

from __future__ import annotations

from topics.engine.priority import BANDS, WEIGHTS, Queues


def test_queues_take_turns_by_weight_and_each_in_its_order() -> None:
    queues = Queues[int]()
    for band in range(BANDS):
        queues.queues[band].extend(range(100))
    taken: dict[int, list[int]] = {band: [] for band in range(BANDS)}
    for _ in range(sum(WEIGHTS)):
        number = queues.next()
        assert number is not None
        queues.spend(number)
        taken[number].append(queues.queues[number].popleft())
    assert taken == {band: [*range(weight)] for band, weight in enumerate(WEIGHTS)}


def test_a_queue_alone_has_all_turns_and_pays_its_debt_when_others_come() -> None:
    queues = Queues[int]()
    assert queues.next() is None
    queues.queues[0].extend(range(50))
    for _ in range(10):
        assert queues.next() == 0
        queues.spend(0, 3)
    queues.queues[3].extend(range(50))
    order = []
    for _ in range(30):
        number = queues.next()
        assert number is not None
        queues.spend(number)
        order.append(number)
    assert order[0] == 3
    assert 0 in order
    assert order.count(3) > 20
