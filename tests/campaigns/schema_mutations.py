"""Mutations of valid requests for `tests.campaigns.schema_fuzz`, and the serialization of requests.

A mutation changes one thing: a value anywhere in the body, its type, its size, a member's name, a
parameter, a header, the path, or the method. Combined mutations may have any effect except a crash.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

from tests.campaigns.schemas import Raw, Request, Source, anything

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63)),
    *("", " ", "x", "\0", "*", "x" * 300, "x" * 5000, "é" * 129, "log-0", "\u202e", "true", "1"),
    *([], {}, [[]], [None], {"": 1}, ["tag"], ["tag", "Eq"], ["tag", "Glob", "*x"], [1, "a", {}]),
    *map(Raw, ("1e5", "1E400", "-0", "01", "NaN", "Infinity", "9" * 400, '"\\ud800"', '"\\u0000"')),
    *map(Raw, ("", "'x'", "{", "]", '"', "\x01", "/**/1", "0x1", "1.", "tru", '"\\x"', "\ufeff1")),
)
NAMES = ("$seq", "__proto__", "data", "DATA", "records ", "", "topic", "seqs", "é", "x" * 300)
VALUES = {
    "Idempotency-Key": ("k1", "", "k" * 300, "\xff"),
    "Accept": ("application/json", "text/event-stream;q=0", "*/*;q=0.1, text/*" + ";a=b" * 40),
    "Accept-Encoding": ("gzip", "gzip;q=0, *"),
    "Content-Encoding": ("gzip", "identity, gzip"),
    "Content-Type": (
        *("text/plain", "application/json; charset=latin-1", "Application/JSON;charset=UTF-8;x"),
    ),
    "Last-Event-ID": ("x" * 4000, "eyJsb2ctMCI6MX0"),
    "X-Request-Id": ("r" * 128, "r" * 129, "a b"),
    "traceparent": (
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-" + "0" * 32 + "-x-01",
    ),
    "Origin": ("null", "http://localhost:3000", "https://evil.example"),
    "Access-Control-Request-Method": ("PUT",),
    "Expect": ("100-continue",),
    "Authorization": ("Bearer nobody", "Basic eDp5"),
    "Range": ("bytes=0-1",),
    "If-None-Match": ("*",),
}
HEADERS = [(name, value) for name, values in VALUES.items() for value in values]
PATHS = (
    *("/v0/topics/{}", "/v0/topics/{}/diff", "/v0/topics/{}/claim", "/v0/topics/{}/leases"),
    *("/v0/routers/{}", "/v0/watch/{}", "/v0/{}", "/{}"),
)
ODD_NAMES = (
    *("a\0", "é", "a/b", "a b", "..", ".", "-a", ":a", "a" * 255, "a" * 256, "a\n", "%", "?x"),
)
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "X" * 40)
PARAMETERS = (
    *("touch", "page_size", "cursor", "prefix", "node", "max", "token", "server_timing", "x"),
)
QUERY_VALUES = ("", "true", "0", "1", "-1", "abc", "1001", "%ff", "%", "+", "eyJ", "A" * 3000, "\0")
LARGE = (2000, 11_000)
HUGE_CHARACTERS = 2**20
SWELL_CHARACTERS = 10_000  # of a list that is extended: a body stays below about 100 MiB


def _wrong(source: Source) -> Any:
    """Return a copy of a wrong value, because later mutations may change it."""
    return copy.deepcopy(source.choice(WRONG))


def mutate(source: Source, request: Request) -> None:
    """Apply one to three mutations."""
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        kinds = [_corrupt_query, _corrupt_header, _corrupt_line]
        if request.body is not None:
            kinds += [_corrupt_body] * 6
        source.choice(kinds)(source, request)


def corrupted_value(source: Source, value: Any) -> Any:
    """Return the value with one change somewhere in it."""
    positions = [*_positions(value)]
    if not positions or source.random() < 0.05:
        return _wrong(source)
    holder, key = source.choice(positions)
    source.choice((_replace, _replace, _replace, _drop, _rename, _add, _enlarge))(
        source, holder, key
    )
    return value


def _positions(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return every position in a value: its container and key."""
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _positions(value[key])


def _replace(source: Source, holder: Any, key: Any) -> None:
    holder[key] = source.choice((_wrong(source), anything(source)))


def _drop(_: Source, holder: Any, key: Any) -> None:
    del holder[key]


def _rename(source: Source, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[source.choice(NAMES)] = holder.pop(key)
    else:
        holder.insert(0, holder[key])


def _add(source: Source, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[source.choice(NAMES)] = _wrong(source)
    else:
        holder.append(_wrong(source))


def _enlarge(source: Source, holder: Any, key: Any) -> None:
    """Return a value larger than permitted, sometimes much larger."""
    value = holder[key]
    if isinstance(value, list) and value and len(text_of(value)) < SWELL_CHARACTERS:
        holder[key] = value * (source.choice(LARGE) // len(value) + 1)
    elif isinstance(value, str):
        holder[key] = "x" * source.choice((257, 20_000, HUGE_CHARACTERS))
    elif isinstance(value, dict):
        value |= {f"s{n}": n for n in range(source.choice((65, 300)))}
    else:
        depth = source.choice((30, 1000, 100_000))
        holder[key] = Raw("[" * depth + "]" * source.choice((depth, depth, depth - 1)))


def _corrupt_body(source: Source, request: Request) -> None:
    request.body = corrupted_value(source, request.body)
    request.spoiled.append("body")


def _corrupt_query(source: Source, request: Request) -> None:
    request.query.append((source.choice(PARAMETERS), source.choice(QUERY_VALUES)))
    if source.random() < 0.3:
        source.shuffle(request.query)
    request.spoiled.append("query")


def _corrupt_header(source: Source, request: Request) -> None:
    request.headers.append(source.choice(HEADERS))
    request.spoiled.append("header")


def _corrupt_line(source: Source, request: Request) -> None:
    if source.random() < 0.5:
        request.method = source.choice(METHODS)
    else:
        request.path = source.choice(PATHS).format(quote(source.choice(ODD_NAMES)))
    request.spoiled.append("line")


# --- bytes


def text_of(value: Any) -> str:
    """Return JSON text. A `Raw` is written unchanged."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value, ensure_ascii=isinstance(value, str) and len(value) % 2 == 0)


def bytes_of(request: Request, token: str) -> bytes:
    """Return the bytes of the request. Header fields that describe the body are sometimes
    correct.
    """
    body = None if request.body is None else text_of(request.body).encode()
    named = {name for name, _ in request.headers}
    if body is not None and ("Content-Encoding", "gzip") in request.headers:
        body = gzip.compress(body, 1, mtime=0) if len(body) % 3 else body
    lines = [*request.headers, ("Host", "localhost")]
    if "Authorization" not in named:
        lines.append(("Authorization", f"Bearer {token}"))
    if body is not None:
        lines.append(("Content-Length", str(len(body))))
        if "Content-Type" not in named:
            lines.append(("Content-Type", "application/json"))
    head = [
        f"{request.method} {_target(request)} HTTP/1.1",
        *(f"{n}: {v}" for n, v in lines),
        "",
        "",
    ]
    return "\r\n".join(head).encode("latin-1") + (body or b"")


def _target(request: Request) -> str:
    """Return the request target. Values are encoded, unless they already contain an escape."""
    pairs = [
        f"{name}={value if '%' in value or value == '+' else quote_plus(value)}"
        for name, value in request.query
    ]
    path = quote(request.path, safe="/%:~-._")
    return f"{path}?{'&'.join(pairs)}" if pairs else path
