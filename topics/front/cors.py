"""CORS: header fields that permit pages from other sites to read responses (TOPICS_CORS_ORIGINS).

    setting     the request's Origin     fields in the response
    unset       any                      no CORS fields
    *           any, or none             Access-Control-Allow-Origin: *, and the exposed fields
    a list      in the list              that origin, the exposed fields, Vary: Origin
    a list      not in it, or none       Vary: Origin

With ``*`` no response depends on Origin. So a cache may use one response for all pages, and needs
no Vary.

A preflight (OPTIONS with Origin and Access-Control-Request-Method) needs no key, because browsers
send none with it. Its response lists the methods and fields that pages may use, which are the same
for all paths. The request that follows is checked like any other request. No response depends on
cookies, so ``*`` gives a page no more access than a program with the same key has.
"""

from __future__ import annotations

from topics.formats.api.request_heads import Head, Headers, HeadFields
from topics.formats.api.response_heads import field_lines

ANY = b"*"
# Chromium caches a preflight for at most two hours. A cached preflight does not give access to a
# removed origin, because each request is checked.
MAX_AGE_S = 7200
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
        # The fields in a response to a request whose head could not be read.
        self.lines_of_unread = self.lines(HeadFields(()))

    def allows(self, fields: HeadFields) -> bool:
        """Return whether the request comes from a page whose origin is listed."""
        return self._origin_of(fields) is not None

    def lines(self, fields: HeadFields) -> bytes:
        """Return the CORS fields of every response to a request with these fields."""
        if self._has_any:
            return self._lines(ANY)
        origin = self._origin_of(fields) if self._origins else None
        return self._vary() if origin is None else self._lines(origin)

    def is_preflight(self, head: Head) -> bool:
        """Return whether the request is a preflight, with which a browser checks what a page may
        send.
        """
        return (
            bool(self._origins)
            and head.method == "OPTIONS"
            and len(head.fields.values(b"origin")) == 1
            and len(head.fields.values(b"access-control-request-method")) == 1
        )

    def allowed(self, fields: HeadFields) -> Headers:
        """Return the fields that the response to a preflight has in addition to `lines`."""
        return ALLOWED if self.allows(fields) else ()

    def _origin_of(self, fields: HeadFields) -> bytes | None:
        """Return the value of Access-Control-Allow-Origin, or None."""
        values = fields.values(b"origin")
        if values and self._has_any:
            return ANY
        return values[0] if len(values) == 1 and values[0] in self._origins else None

    def _lines(self, origin: bytes) -> bytes:
        return field_lines(((b"access-control-allow-origin", origin), EXPOSED)) + self._vary()

    def _vary(self) -> bytes:
        return field_lines((VARY,)) if self._origins and not self._has_any else b""
