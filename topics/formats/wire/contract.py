"""Typed calls and events: the params and the result of each subject, and their encoding.

A `Call` is a request with one response. An `Event` is a message without a response. The params of
both and the result of a call are NamedTuples. A NamedTuple is sent as an array of its fields in
order, so a message contains no field names. The receiver creates the NamedTuple from the array.

Both processes run the same version of this program, so an array always contains all fields, and its
length is not checked. The default values only allow the sender's code to omit fields.

Values in params and results are not converted: a nested tuple is received as a list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

P = TypeVar("P", bound=tuple[Any, ...])
R = TypeVar("R", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[P, R]):
    """A request with the subject ``subject``, and its response.

    ``is_write``: the shard responds only after the log has written the frames of the request.
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
    """A message with the subject ``subject``, without a response."""

    method: str
    params: type[P]
    subject: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", EVENT_PREFIX + self.method)
