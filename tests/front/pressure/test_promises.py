"""Promises are kept once, to whom they were given, in their time."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from topics.front.pressure import promises as module
from topics.front.pressure.promises import LIFE_S, OF_ONE_MAX, Promises

KEY, OTHER = b"k", b"o"


@pytest.fixture
def promises() -> Promises:
    return Promises()


def test_a_promise_is_redeemed_once_and_not_before_its_time(promises: Promises) -> None:
    assert promises.give(KEY, "t", 5.0)
    assert not promises.redeem(KEY, "t", 4.999)
    assert promises.redeem(KEY, "t", 5.0)
    assert not promises.redeem(KEY, "t", 5.0)
    assert len(promises) == 0


def test_a_promise_belongs_to_its_key_and_topic(promises: Promises) -> None:
    promises.give(KEY, "t", 5.0)
    assert not promises.redeem(OTHER, "t", 6.0)
    assert not promises.redeem(KEY, "u", 6.0)
    assert promises.redeem(KEY, "t", 6.0)


def test_each_promise_of_a_holder_has_its_own_time(promises: Promises) -> None:
    for due in (5.0, 6.0, 7.0):
        promises.give(KEY, "t", due)
    assert [promises.redeem(KEY, "t", 6.5) for _ in range(3)] == [True, True, False]
    assert promises.redeem(KEY, "t", 7.0)


def test_holders_and_their_last_promises_are_known(promises: Promises) -> None:
    assert (promises.holders, promises.last(KEY, "t")) == (0, 0.0)
    for due, topic in ((5.0, "t"), (6.0, "t"), (7.0, "u")):
        promises.give(KEY, topic, due)
    assert (promises.holders, promises.last(KEY, "t")) == (2, 6.0)
    promises.redeem(KEY, "u", 7.0)
    assert (promises.holders, promises.last(KEY, "u")) == (1, 0.0)


def test_a_promise_lapses(promises: Promises) -> None:
    promises.give(KEY, "t", 5.0)
    promises.give(KEY, "t", 6.0)
    assert promises.redeem(KEY, "t", 5.5 + LIFE_S), "the second one"
    assert not promises.redeem(KEY, "t", 5.5 + LIFE_S)
    assert len(promises) == 0


def test_lapsed_promises_are_forgotten_without_a_call_of_their_holder(promises: Promises) -> None:
    promises.give(KEY, "t", 5.0)
    promises.give(KEY, "t", 9.0)
    promises.give(OTHER, "t", 9.0)
    promises.expire(6.1 + LIFE_S)
    assert len(promises) == 2
    promises.expire(10.1 + LIFE_S)
    assert (len(promises), promises._due, promises._lapsing) == (0, {}, {})


def test_one_holder_has_a_bound(promises: Promises) -> None:
    given = [promises.give(KEY, "t", 5.0) for _ in range(OF_ONE_MAX + 1)]
    assert given == [True] * OF_ONE_MAX + [False]
    assert promises.give(OTHER, "t", 5.0)


def test_all_of_them_have_a_bound(promises: Promises, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMISES_MAX", 3)
    assert [promises.give(KEY, str(n), 5.0) for n in range(4)] == [True, True, True, False]
    assert promises.redeem(KEY, "0", 5.0)
    assert promises.give(KEY, "3", 5.0), "there is room again"


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_calls_does_what_a_plain_list_does(seed: int) -> None:
    chance = random.Random(seed)
    promises, now = Promises(), 0.0
    model = defaultdict[str, list[float]](list)
    for _ in range(2000):
        now += chance.choice((0.0, 0.1, 3.0, 20.0))
        topic = chance.choice("abc")
        for name in model:
            model[name] = [due for due in model[name] if due >= now - LIFE_S]
        if chance.random() < 0.5:
            promises.give(KEY, topic, now + 1.0)
            model[topic].append(now + 1.0)
        elif chance.random() < 0.5:
            is_due = bool(model[topic]) and model[topic][0] <= now
            assert promises.redeem(KEY, topic, now) == is_due
            del model[topic][: int(is_due)]
        else:
            promises.expire(now)
    promises.expire(now + 2 * LIFE_S)
    assert len(promises) == 0
