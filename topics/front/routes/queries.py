"""Query strings: the parameters of each route, typed. Unknown ones are ignored; of a repeated one
the last counts.

A query has at most `QUERY_MAX_BYTES` and `PARAMETERS_MAX` parameters. ``?token=`` is looked for in
longer ones, too, because whoever has no key is told that first.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from topics.errors import InvalidRequest

QUERY_MAX_BYTES = 8 * 1024  # several times the longest prefix, cursor and key together
PARAMETERS_MAX = 64
PAGE_SIZE = 100
PAGE_SIZE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """All parameters of all routes; a route reads the ones it has."""

    return_seqs: bool = True
    touch: bool = True
    if_empty: bool = False
    prefix: str = ""
    page_size: int = PAGE_SIZE
    after: str | None = None
    lenient: bool = False


NOTHING_ASKED = Query()
WITH_PARAMETERS = frozenset(("append", "topic.get", "topic.delete", "topic.list", "watch"))


class Cursor(msgspec.Struct, forbid_unknown_fields=True):
    """What an opaque list cursor holds."""

    after: str


def parse_query(route: str, raw: bytes) -> Query:
    """The query of the route by that name. Raises `InvalidRequest`."""
    if not raw:
        return Query(touch=False) if route == "topic.list" else NOTHING_ASKED
    if len(raw) > QUERY_MAX_BYTES or raw.count(b"&") >= PARAMETERS_MAX:
        raise InvalidRequest(
            f"the query string has more than {QUERY_MAX_BYTES} bytes or {PARAMETERS_MAX} parameters"
        )
    if route not in WITH_PARAMETERS:
        return NOTHING_ASKED
    values = _values(raw)
    if route == "append":
        return Query(return_seqs=_boolean(values, "return_seqs", default=True))
    if route == "topic.get":
        return Query(touch=_boolean(values, "touch", default=True))
    if route == "topic.delete":
        return Query(if_empty=_boolean(values, "if_empty", default=False))
    if route == "watch":
        return Query(lenient=_boolean(values, "lenient", default=False))
    if route == "topic.list":
        return Query(
            prefix=values.get("prefix", ""),
            page_size=_page_size(values),
            after=decode_cursor(values["cursor"]) if "cursor" in values else None,
            touch=_boolean(values, "touch", default=False),
        )
    return NOTHING_ASKED


def _values(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidRequest("the query string cannot be read") from None
    return dict(pairs)


def find_token(raw: bytes) -> bytes | None:
    """The first ``token`` of a query, found without parsing the rest; None when there is none."""
    _, found, rest = (b"&" + raw).partition(b"&token=")
    return unquote_to_bytes(rest.partition(b"&")[0].replace(b"+", b" ")) if found else None


def _boolean(values: dict[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false", parameter=name)
    return text == "true"


def _page_size(values: dict[str, str]) -> int:
    text = values.get("page_size", str(PAGE_SIZE))
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise InvalidRequest("page_size must be an integer", parameter="page_size")
    return min(max(int(text), 1), PAGE_SIZE_MAX)


def encode_cursor(after: str) -> str:
    """The cursor of the page that follows the name ``after``: URL-safe base64 of JSON, no padding."""
    return base64.urlsafe_b64encode(msgspec.json.encode(Cursor(after))).rstrip(b"=").decode("ascii")


def decode_cursor(text: str) -> str:
    """The name in a cursor. Padding is tolerated. Raises `InvalidRequest`."""
    try:
        packed = text.rstrip("=").encode("ascii")
        padded = packed + b"=" * (-len(packed) % 4)
        return msgspec.json.decode(
            base64.b64decode(padded, altchars=b"-_", validate=True), type=Cursor
        ).after
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise InvalidRequest("the cursor is corrupt", parameter="cursor") from None
