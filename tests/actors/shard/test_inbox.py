"""Inbox: messages are taken in order of arrival, a bounded batch at a time."""

from __future__ import annotations

from typing import Any

import pytest

from topics.actors.shard import inbox
from topics.actors.shard.inbox import Inbox
from topics.formats.wire.message import Message


class Session:
    """Stands for a link session: an inbox only carries it."""


def messages(*numbers: int) -> list[Message]:
    return [Message(number, 0, "rpc/append", b"", b"") for number in numbers]


def numbers(batch: Any) -> list[int]:
    return [message.message_id for _, messages in batch for message in messages]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Inbox:
    monkeypatch.setattr(inbox, "BATCH_MAX", 3)
    monkeypatch.setattr(inbox, "WAITING_MAX", 6)
    return Inbox()


def test_a_batch_holds_the_messages_of_all_links_in_order_of_arrival(box: Inbox) -> None:
    one: Any = Session()
    other: Any = Session()
    box.put(one, messages(1, 2))
    box.put(other, messages(3))
    batch = [*box.take()]
    assert numbers(batch) == [1, 2, 3]
    assert [session for session, _ in batch] == [one, other]
    assert not box


def test_a_batch_is_bounded_and_the_rest_waits_in_order(box: Inbox) -> None:
    session: Any = Session()
    box.put(session, messages(1, 2, 3, 4, 5))
    assert numbers(box.take()) == [1, 2, 3]
    box.put(session, messages(6))
    assert (len(box), numbers(box.take()), numbers(box.take())) == (3, [4, 5, 6], [])


def test_an_inbox_is_full_above_its_bound(box: Inbox) -> None:
    session: Any = Session()
    box.put(session, messages(*range(6)))
    assert not box.is_full
    box.put(session, messages(6))
    assert box.is_full
    box.take()
    assert not box.is_full


def test_another_order_is_a_matter_of_take_alone(box: Inbox) -> None:
    """The seam: a policy sees each message with its session and chooses the batch."""

    class OtherFirst(Inbox):
        """Messages of one session go before all others."""

        def take(self) -> Any:
            return sorted(super().take(), key=lambda arrival: arrival[0] is not favoured)

    common: Any = Session()
    favoured: Any = Session()
    weighed = OtherFirst()
    weighed.put(common, messages(1, 2))
    weighed.put(favoured, messages(3))
    assert numbers(weighed.take()) == [3, 1, 2]
