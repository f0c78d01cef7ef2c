"""Typed calls and events: what one subject carries, and how its params and result travel.

A `Call` is a request with one answer, an `Event` a message that nobody answers. The params of both
and the result of a call are NamedTuples. A NamedTuple travels as a CBOR array of its fields in
order, so a message has no field names; the receiver makes the NamedTuple again from the array.

Both ends run the same version of this program: an array always holds every field, and its length
is not checked. A default value only spares the sender a field that it does not need.

Values inside of params and results are not made again: a nested tuple arrives as a list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

P = TypeVar("P", bound=tuple[Any, ...])
R = TypeVar("R", bound=tuple[Any, ...])


class Direction(StrEnum):
    """Who sends the request or the event. An answer goes the other way."""

    TO_SHARD = "to shard"
    TO_FRONT = "to front"


NO_ATTACHMENT: Final = "-"
TO_SHARD, TO_FRONT = Direction


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[P, R]):
    """A request under ``subject`` and its answer.

    ``attachment`` and ``answer`` say in a word which bytes travel beside params and result, or
    NO_ATTACHMENT.
    ``is_write``: the shard answers when its log has spoken.
    """

    method: str
    direction: Direction
    params: type[P]
    attachment: str
    result: type[R]
    answer: str
    is_write: bool = False
    subject: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", RPC_PREFIX + self.method)

    def params_of(self, array: list[Any]) -> P:
        """The params of a request that arrived."""
        return tuple.__new__(self.params, array)

    def result_of(self, array: list[Any]) -> R:
        """The result of an answer that arrived."""
        return tuple.__new__(self.result, array)


@dataclass(frozen=True, slots=True, eq=False)
class Event(Generic[P]):
    """A message under ``subject`` without an answer. Fields as those of `Call`."""

    method: str
    direction: Direction
    params: type[P]
    attachment: str
    subject: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", EVENT_PREFIX + self.method)

    def params_of(self, array: list[Any]) -> P:
        """The params of an event that arrived."""
        return tuple.__new__(self.params, array)
