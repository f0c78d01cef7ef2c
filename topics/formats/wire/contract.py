"""Typed calls and events: what one subject carries, and how its params and result travel.

A `Call` is a request with one answer, an `Event` a message that nobody answers. The params of both
and the result of a call are NamedTuples. A NamedTuple travels as an array of its fields in order,
so a message has no field names; the receiver makes the NamedTuple again from the array.

Both ends run the same version of this program: an array always holds every field, and its length
is not checked. A default value only spares the sender a field that it does not need.

Values inside of params and results are not made again: a nested tuple arrives as a list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

P = TypeVar("P", bound=tuple[Any, ...])
R = TypeVar("R", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[P, R]):
    """A request under ``subject`` and its answer.

    ``is_write``: the shard answers only after the log has written the frames of the request.
    """

    method: str
    params: type[P]
    result: type[R]
    is_write: bool = False
    subject: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", RPC_PREFIX + self.method)


@dataclass(frozen=True, slots=True, eq=False)
class Event(Generic[P]):
    """A message under ``subject`` without an answer."""

    method: str
    params: type[P]
    subject: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", EVENT_PREFIX + self.method)
