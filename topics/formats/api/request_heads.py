"""Parser of HTTP/1.1 request heads: the request line and the header fields (RFC 9112).

The functions perform no I/O: they use no socket, no clock and no task.

    request  = method SP target SP "HTTP/1." ("0" | "1") CRLF field* CRLF body
    field    = token ":" OWS value OWS CRLF            no folding, no bare CR or LF, no NUL

`topics.formats.api.body_framing` handles the framing of the body. A head has at most
`HEAD_MAX_BYTES` and `FIELDS_MAX` fields, because it is read before the client is authenticated.

An ambiguous head is rejected. Otherwise this server and a proxy could interpret it differently,
which would allow request smuggling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topics.errors import InvalidRequest
from topics.formats.names import TOPIC_NAME

Headers = tuple[tuple[bytes, bytes], ...]  # names and values of the fields of a response

# Maximum number of list members that are parsed. It is limited because fields are read before the
# client is authenticated.
LIST_MAX = 64


def list_members(value: bytes) -> list[bytes]:
    """Return the first `LIST_MAX` members of a list in lower case, ignoring the others."""
    return [member.strip().lower() for member in value.split(b",", LIST_MAX)[:LIST_MAX]]


class HeadFields:
    """The fields of a request head by lower-case name. A repeated field keeps all its values."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Sequence[tuple[bytes, bytes]]) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def values(self, name: bytes) -> list[bytes]:
        """Return all values of the field, in order."""
        return [value for field, value in self._fields if field == name]

    def without(self, name: bytes) -> HeadFields:
        """Return all fields except ``name``."""
        return HeadFields([field for field in self._fields if field[0] != name])

    def clear(self) -> None:
        """Delete all fields to release their memory, because a stream may stay open for days."""
        self._fields = ()

    def joined(self, name: bytes) -> bytes:
        """Join repeated fields into one list (RFC 9110 §5.3). Empty if the field is absent."""
        return b",".join(self.values(name))


HEAD_END = b"\r\n\r\n"
HEAD_MAX_BYTES = 64 * 1024
FIELDS_MAX = 256  # maximum number of fields in a head; parsing them takes 0.4 ms
LENGTH_DIGITS_MAX = 18  # maximum number of digits in Content-Length
UNSUPPORTED_VERSION = re.compile(rb"[^\r\n]+ HTTP/(?!1\.[01]\r)[0-9](?:\.[0-9])?\r\n")

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
VALUE = rb"[\t\x20-\x7e\x80-\xff]*+"
HEAD = re.compile(
    rb"("
    + TOKEN
    + rb") ([\x21-\x7e]++) HTTP/1\.([01])\r\n((?:"
    + TOKEN
    + rb":"
    + VALUE
    + rb"\r\n)*+)\r\n"
)
FIELD = re.compile(rb"(" + TOKEN + rb"):(" + VALUE + rb")\r\n")
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~%!$&'()*+,;=]*)(?::[0-9]*)?")
EMPTY_LINES = re.compile(rb"(?:\r\n)*+")
# Matches the lines of an incomplete head. Searching for invalid bytes would take ten times as long.
SO_FAR = re.compile(rb"(?:" + VALUE + rb"\r\n)*+" + VALUE + rb"\r?+")


@dataclass(frozen=True, slots=True)
class Head:
    """A request head. ``length`` is None for a chunked body, and 0 without a body."""

    method: str
    target: bytes
    fields: HeadFields
    length: int | None
    close: bool
    expects_continue: bool
    is_1_1: bool = True


def parse_head(raw: bytes) -> Head:
    """Parse a complete head. ``raw`` ends with the empty line.

    Raises `InvalidRequest` unless the head is strictly well-formed.
    """
    found = HEAD.fullmatch(raw) if len(raw) <= HEAD_MAX_BYTES else None
    if found is None:
        if UNSUPPORTED_VERSION.match(raw):
            raise InvalidRequest("only HTTP/1.1 and HTTP/1.0 are supported")
        raise InvalidRequest("malformed HTTP request head")
    if raw.count(b"\r\n") > FIELDS_MAX + 2:  # the request line and the empty line
        raise InvalidRequest(f"the request head has more than {FIELDS_MAX} fields")
    fields = HeadFields(
        [(name.lower(), value.strip(b" \t")) for name, value in FIELD.findall(found[4])]
    )
    is_1_1 = found[3] == b"1"
    if not is_1_1:
        fields = fields.without(b"upgrade")  # HTTP/1.0 has no upgrades (RFC 9110 §7.8).
    _check_host(fields, is_1_1)
    expectations = [value.lower() for value in fields.values(b"expect")]
    return Head(
        method=found[1].decode("ascii"),
        target=found[2],
        fields=fields,
        length=_body_length(fields, is_1_1),
        close=not is_1_1 or b"close" in list_members(fields.joined(b"connection")),
        expects_continue=is_1_1 and expectations == [b"100-continue"],
        is_1_1=is_1_1,
    )


def end_of_empty_lines(data: bytes, pos: int) -> int:
    """Return the position after the empty lines that start at ``pos``."""
    found = EMPTY_LINES.match(data, pos)
    assert found is not None, "the pattern matches an empty string, too"
    return found.end()


class PartialHead:
    """Collects a head that is received in several chunks.

    Each byte is copied and searched a constant number of times, regardless of the number of chunks.
    """

    def __init__(self) -> None:
        self._part = bytearray()

    @property
    def size(self) -> int:
        """The number of bytes that have been received."""
        return len(self._part)

    def feed(self, data: bytes) -> int | None:
        """Add a chunk. Returns the number of bytes of ``data`` that belong to the head, or None if
        the head is not yet complete.

        Raises `InvalidRequest` as soon as no continuation can make the head well-formed.
        """
        part, seen = self._part, len(self._part)
        part += data
        end = part.find(HEAD_END, max(0, seen - len(HEAD_END) + 1))
        if end >= 0:
            end += len(HEAD_END)
            del part[end:]
            return end - seen
        if len(part) > HEAD_MAX_BYTES:
            raise InvalidRequest(f"the request head is larger than {HEAD_MAX_BYTES} bytes")
        # Whether a CR is valid depends on the next byte, which may be in the next chunk.
        if SO_FAR.fullmatch(part, seen - part.endswith(b"\r", 0, seen)) is None:
            raise InvalidRequest("malformed HTTP request head")
        return None

    def complete(self) -> bytes:
        """Return the complete head."""
        return bytes(self._part)


def _check_host(fields: HeadFields, is_1_1: bool) -> None:
    hosts = fields.values(b"host")
    if len(hosts) > 1 or (is_1_1 and not hosts):
        raise InvalidRequest("exactly one Host field is required")
    if hosts and HOST.fullmatch(hosts[0]) is None:
        raise InvalidRequest("malformed Host field")


def _body_length(fields: HeadFields, is_1_1: bool) -> int | None:
    lengths = fields.values(b"content-length")
    codings = fields.values(b"transfer-encoding")
    if codings:
        if lengths or not is_1_1 or [coding.lower() for coding in codings] != [b"chunked"]:
            raise InvalidRequest(
                "Transfer-Encoding must be chunked, alone and without Content-Length"
            )
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not (lengths[0].isdigit() and len(lengths[0]) <= LENGTH_DIGITS_MAX):
        raise InvalidRequest("Content-Length must be one decimal number")
    return int(lengths[0])


ABSOLUTE = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)


def authority_of(target: bytes) -> tuple[bytes, ...]:
    """Return the ``host:port`` of a target in absolute form. Empty for any other form."""
    absolute = ABSOLUTE.fullmatch(target)
    return (absolute[1],) if absolute else ()


def origin_form(target: bytes) -> bytes:
    """Convert a target in absolute form to origin form. Other forms are returned unchanged.

    ``http://host/path?query`` becomes ``/path?query``, and ``http://host?query`` becomes
    ``/?query``.
    """
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    rest: bytes = absolute[2]
    return rest if rest.startswith(b"/") else b"/" + rest


_START = re.compile(
    rb"[A-Z]{1,16} /v0/topics/(" + TOPIC_NAME.pattern.encode("ascii") + rb")(?=[ /?])"
)


def cut_topic_name(raw: bytes) -> tuple[bytes, str] | None:
    """Remove the topic name from a complete head. Returns the rest of the head and the name.

    Returns None if the target is not a topic, or if the name is percent-encoded or invalid. The
    first byte after the removed name cannot be part of a name. So if the rests of two heads are
    equal, the heads differ only in their topic names.
    """
    found = _START.match(raw)
    if found is None or len(raw) > HEAD_MAX_BYTES:
        return None
    start, end = found.span(1)
    return raw[:start] + raw[end:], found[1].decode("ascii")


# Number of bytes that are kept from the end of X-Forwarded-For. It is small, because a stream keeps
# them in memory and may stay open for days.
FORWARDED_KEPT_BYTES = 1024
# The first 12 bytes of the lines of these fields, in lower case.
_STARTS = frozenset({b"x-request-id", b"traceparent:", b"x-forwarded-"})
_NAMES = re.compile(rb"\r\n(?:x-request-id|traceparent|x-forwarded-for):", re.IGNORECASE)
_VALUE = re.compile(VALUE)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# Version, trace, parent, flags. Later versions may append members of unknown form.
_IDS = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_LATER = rb"(?!00|ff)[0-9a-f]{2}" + _IDS + rb"(?:-[\x21-\x7e]{0,72})?"
_TRACEPARENT = re.compile(rb"00" + _IDS + rb"|" + _LATER)


class TraceFields(NamedTuple):
    """The valid values of the trace fields.

    A value is None if the field is absent, repeated or invalid. ``forwarded`` is the end of all
    X-Forwarded-For fields, joined into one list. It is not validated.
    """

    request_id: bytes | None
    traceparent: bytes | None
    forwarded: bytes | None


def cut_trace_fields(raw: bytes) -> tuple[bytes, TraceFields] | None:
    """Remove the trace fields from a complete head. Returns the rest of the head and the fields.

    Returns None if the head has no trace field or exceeds the limits on heads. The caller caches
    parsed heads by their bytes, and these fields differ between requests and clients. The rest is
    well-formed only if ``raw`` is, because only complete, well-formed lines are removed.
    """
    if _NAMES.search(raw) is None:  # the usual case
        return None
    lines = raw.split(b"\r\n")
    # The lines also include the request line and, after the last CRLF, two empty strings.
    if len(raw) > HEAD_MAX_BYTES or len(lines) > FIELDS_MAX + 3:
        return None
    found = [at for at, line in enumerate(lines) if line[:12].lower() in _STARTS and at]
    ids: list[bytes] = []
    parents: list[bytes] = []
    hops: list[bytes] = []
    cut = {b"x-request-id": ids, b"traceparent": parents, b"x-forwarded-for": hops}
    for at in reversed(found):
        name, colon, value = lines[at].partition(b":")
        values = cut.get(name.lower())
        if values is not None and colon and _VALUE.fullmatch(value):
            values.append(value.strip(b" \t"))
            del lines[at]
    if not (ids or parents or hops):
        return None
    forwarded = b",".join(reversed(hops))[-FORWARDED_KEPT_BYTES:] if hops else None
    trace = TraceFields(_only(ids, _REQUEST_ID), _only(parents, _TRACEPARENT), forwarded)
    return b"\r\n".join(lines), trace


def _only(values: list[bytes], form: re.Pattern[bytes]) -> bytes | None:
    return values[0] if len(values) == 1 and form.fullmatch(values[0]) else None
