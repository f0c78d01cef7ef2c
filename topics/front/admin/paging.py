"""Pages of lists: their size and their cursors.

A cursor is what the page before ended with, as URL-safe base64 of ``{"after": ...}`` without
padding. To clients it is opaque.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

from topics.actors.rpc.session import Reply
from topics.errors import InvalidRequest
from topics.formats.wire import calls
from topics.front.answers import Answer, elapsed_ms
from topics.front.queries import Parameter, integer

PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000
CURSOR_MAX = 512  # characters; the cursor for the longest name has 360
Seq = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


def page_size(name: str, value: str) -> int:
    """The page size, clamped. Raises `InvalidRequest` for anything but digits."""
    return min(max(integer(name, value), 1), PAGE_SIZE_MAX)


class Cursor(msgspec.Struct, Generic[T], forbid_unknown_fields=True):
    """What a cursor holds: the last name or seq of a page."""

    after: T


class Cursors(Generic[T]):
    """The cursors of one kind of list."""

    def __init__(self, kind: type[Cursor[T]]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def encode(self, after: T) -> str:
        """The cursor of the page behind ``after``."""
        document = msgspec.json.encode(Cursor(after))
        return base64.urlsafe_b64encode(document).rstrip(b"=").decode("ascii")

    def decode(self, name: str, value: str) -> T:
        """What a cursor holds. Padding is tolerated. Raises `InvalidRequest`."""
        if len(value) > CURSOR_MAX:
            raise InvalidRequest(f"{name} has more than {CURSOR_MAX} characters", parameter=name)
        try:
            packed = value.rstrip("=").encode("ascii")
            padded = packed + b"=" * (-len(packed) % 4)
            document = base64.b64decode(padded, altchars=b"-_", validate=True)
            return self._decoder.decode(document).after
        except (ValueError, binascii.Error, msgspec.DecodeError):
            raise InvalidRequest("the cursor is corrupt", parameter=name) from None


NAMES: Cursors[str] = Cursors(Cursor[str])
SEQS: Cursors[int] = Cursors(Cursor[Seq])
SIZE = Parameter("page_size", page_size, default=PAGE_SIZE)


def named_items(
    reply: Reply[calls.TopicListResult] | Reply[calls.RouterListResult],
) -> list[tuple[str, bytes]]:
    """Copy the things of a list, each with its JSON."""
    return [(name, bytes(item)) for name, item in reply.result.items]


def answer(kind: str, items: Sequence[tuple[str, bytes]], size: int, at: int) -> Answer:
    """A page of at most ``size`` things of a ``kind``: names, each with its JSON. One more in
    ``items`` tells that another page follows. ``at``: monotonic ns.
    """
    page = items[:size]
    more = {"next_cursor": NAMES.encode(page[-1][0])} if len(items) > len(page) else {}
    tail = {**more, "performance": {"server_total_ms": elapsed_ms(at)}}
    listed = b",".join([item for _, item in page])
    return Answer(200, b'{"%b":[%b],' % (kind.encode(), listed) + msgspec.json.encode(tail)[1:])
