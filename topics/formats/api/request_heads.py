"""Request heads: HTTP/1.1 request lines and fields as bytes (RFC 9112). Pure: no socket, no clock,
no task.

    request  = method SP target SP "HTTP/1." ("0" | "1") CRLF field* CRLF body
    field    = token ":" OWS value OWS CRLF            no folding, no bare CR or LF, no NUL

The body is framed by `topics.formats.api.body_framing`. A head has at most `HEAD_MAX_BYTES` and
`FIELDS_MAX` fields, because it is read before the client is authenticated.

An ambiguous head is refused: request smuggling needs two servers that read one message differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from topics.errors import InvalidRequest
from topics.formats.api.fields import HeadFields, list_members

HEAD_END = b"\r\n\r\n"
HEAD_MAX_BYTES = 64 * 1024
FIELDS_MAX = 256  # of one head: parsing them takes 0.4 ms
LENGTH_DIGITS_MAX = 18  # of a Content-Length
OTHER_VERSION = re.compile(rb"[^\r\n]+ HTTP/(?!1\.[01]\r)[0-9](?:\.[0-9])?\r\n")

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
NEVER_IN_HEAD = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Head:
    """A request head. ``length`` is None for a chunked body, 0 for none."""

    method: str
    target: bytes
    fields: HeadFields
    length: int | None
    close: bool
    expects_continue: bool


def parse_head(raw: bytes) -> Head:
    """Parse a whole head; ``raw`` ends with the empty line. Raises `InvalidRequest` unless the head
    is strictly well-formed.
    """
    found = HEAD.fullmatch(raw) if len(raw) <= HEAD_MAX_BYTES else None
    if found is None:
        if OTHER_VERSION.match(raw):
            raise InvalidRequest("only HTTP/1.1 and HTTP/1.0 are supported")
        raise InvalidRequest("malformed HTTP request head")
    if raw.count(b"\r\n") > FIELDS_MAX + 2:  # the request line and the empty line
        raise InvalidRequest(f"the request head has more than {FIELDS_MAX} fields")
    fields = HeadFields(
        [(name.lower(), value.strip(b" \t")) for name, value in FIELD.findall(found[4])]
    )
    is_1_1 = found[3] == b"1"
    if not is_1_1:
        fields = fields.without(b"upgrade")  # it means nothing there (RFC 9110 §7.8)
    _check_host(fields, is_1_1)
    expectations = [value.lower() for value in fields.values(b"expect")]
    return Head(
        method=found[1].decode("ascii"),
        target=found[2],
        fields=fields,
        length=_body_length(fields, is_1_1),
        close=not is_1_1 or b"close" in list_members(fields.joined(b"connection")),
        expects_continue=is_1_1 and expectations == [b"100-continue"],
    )


def end_of_empty_lines(data: bytes, pos: int) -> int:
    """The position after the empty lines that start at ``pos``."""
    found = EMPTY_LINES.match(data, pos)
    assert found is not None, "the pattern also matches no line"
    return found.end()


class PartialHead:
    """A head that arrives in pieces. Every byte is copied and searched a bounded number of times,
    however many pieces there are.
    """

    def __init__(self) -> None:
        self._part = bytearray()

    def feed(self, data: bytes) -> int | None:
        """Add a piece. Returns how many bytes of ``data`` belong to the head, None while the head
        has no end.

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
        # From the last byte of the piece before: a CR is judged by the byte after it.
        if NEVER_IN_HEAD.search(part, max(0, seen - 1)):
            raise InvalidRequest("malformed HTTP request head")
        return None

    def whole(self) -> bytes:
        """The complete head."""
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
