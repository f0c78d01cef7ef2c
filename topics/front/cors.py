"""CORS: which pages of other sites may read answers (TOPICS_CORS_ORIGINS).

    setting     Origin of the request    the answer has
    unset       any                      nothing of CORS
    *           any, or none             Access-Control-Allow-Origin: *, and what is exposed
    a list      one of the list          that origin, what is exposed, Vary: Origin
    a list      another, or none         Vary: Origin

With ``*`` no answer depends on Origin: a cache may give one to any page, and needs no Vary.

A preflight (OPTIONS with Origin and Access-Control-Request-Method) asks for no key: browsers send
none with it. It says what pages may send, whatever the path; the request that follows is judged as
any other. No answer depends on cookies, so ``*`` opens nothing to a page that its own server could
not reach with the same key.
"""

from __future__ import annotations

from topics.formats.api.request_heads import Head, Headers, HeadFields
from topics.formats.api.response_heads import field_lines

ANY = b"*"
MAX_AGE_S = 7200  # browsers keep a preflight no longer; a removed origin is refused at once anyway
ALLOWED: Headers = (
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id",
    ),
    (b"access-control-max-age", b"%d" % MAX_AGE_S),
)
EXPOSED = (b"access-control-expose-headers", b"Retry-After, X-Request-Id")
VARY = (b"vary", b"Origin")


class Cors:
    """The origins of TOPICS_CORS_ORIGINS."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self._has_any = ANY in self._origins
        # Of an answer to a head that could not be read.
        self.lines_of_unread = self.lines(HeadFields(()))

    def allows(self, fields: HeadFields) -> bool:
        """Whether the request comes from a page whose origin is listed."""
        return self._origin_of(fields) is not None

    def lines(self, fields: HeadFields) -> bytes:
        """The field lines of every answer to a request with these fields."""
        if self._has_any:
            return self._lines(ANY)
        origin = self._origin_of(fields) if self._origins else None
        return self._vary() if origin is None else self._lines(origin)

    def is_preflight(self, head: Head) -> bool:
        """Whether a browser asks what a page may send."""
        return (
            bool(self._origins)
            and head.method == "OPTIONS"
            and len(head.fields.values(b"origin")) == 1
            and len(head.fields.values(b"access-control-request-method")) == 1
        )

    def allowed(self, fields: HeadFields) -> Headers:
        """What the answer to a preflight has beside `lines`."""
        return ALLOWED if self.allows(fields) else ()

    def _origin_of(self, fields: HeadFields) -> bytes | None:
        """What Access-Control-Allow-Origin says, if anything."""
        values = fields.values(b"origin")
        if values and self._has_any:
            return ANY
        return values[0] if len(values) == 1 and values[0] in self._origins else None

    def _lines(self, origin: bytes) -> bytes:
        return field_lines(((b"access-control-allow-origin", origin), EXPOSED)) + self._vary()

    def _vary(self) -> bytes:
        return field_lines((VARY,)) if self._origins and not self._has_any else b""
