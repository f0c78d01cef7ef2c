"""Paging of lists: page sizes and cursors.

A cursor is the last name or seq of the previous page, as URL-safe base64 of ``{"after": ...}``
without padding. It is opaque to clients.
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
CURSOR_MAX = 512  # characters; the cursor for the longest name has 360 characters
Seq = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


def page_size(name: str, value: str) -> int:
    """Parse a page size and clamp it to the bounds.

    Raise `InvalidRequest` for anything but digits.
    """
    return min(max(integer(name, value), 1), PAGE_SIZE_MAX)


class Cursor(msgspec.Struct, Generic[T], forbid_unknown_fields=True):
    """The content of a cursor: the last name or seq of a page."""

    after: T


class Cursors(Generic[T]):
    """Encodes and decodes the cursors of one kind of list."""

    def __init__(self, kind: type[Cursor[T]]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def encode(self, after: T) -> str:
        """Return the cursor for the page that follows ``after``."""
        document = msgspec.json.encode(Cursor(after))
        return base64.urlsafe_b64encode(document).rstrip(b"=").decode("ascii")

    def decode(self, name: str, value: str) -> T:
        """Return the content of a cursor. Padding is accepted. Raise `InvalidRequest`."""
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
    """Copy the items of a list. Return each name with its JSON."""
    return [(name, bytes(item)) for name, item in reply.result.items]


def answer(kind: str, items: Sequence[tuple[str, bytes]], size: int, at: int) -> Answer:
    """Return a page with at most ``size`` items of a ``kind``, each a name with its JSON.

    If ``items`` has more items, the response has a cursor for the next page. ``at`` is in monotonic
    ns.
    """
    page = items[:size]
    more = {"next_cursor": NAMES.encode(page[-1][0])} if len(items) > len(page) else {}
    tail = {**more, "performance": {"server_total_ms": elapsed_ms(at)}}
    listed = b",".join([item for _, item in page])
    return Answer(200, b'{"%b":[%b],' % (kind.encode(), listed) + msgspec.json.encode(tail)[1:])
