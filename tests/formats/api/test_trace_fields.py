"""Trace fields: which values are valid, and the head without these fields."""

from __future__ import annotations

import pytest

from topics.errors import InvalidRequest
from topics.formats.api.request_heads import cut_trace_fields, parse_head

LINE = b"GET / HTTP/1.1\r\n"
HOST = b"host: a\r\n"
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PLAIN = LINE + HOST + b"\r\n"


def head(*fields: bytes) -> bytes:
    return LINE + HOST + b"".join([field + b"\r\n" for field in fields]) + b"\r\n"


def values(*fields: bytes) -> tuple[bytes | None, bytes | None]:
    found = cut_trace_fields(head(*fields))
    assert found is not None
    assert found[0] == PLAIN
    return found[1][:2]


@pytest.mark.parametrize(
    "raw",
    [
        *(PLAIN, head(b"x-request-id-2: a"), head(b"my-traceparent: a")),
        *(head(b"a: x-request-id: b"), b"GET /x-request-id: HTTP/1.1\r\n\r\n"),
        *(head(b"x-request-id : a"), head(b"x-request-id: a\0b"), head(b"x-request-id: a\nb")),
    ],
)
def test_a_head_without_trace_fields_is_not_cut(raw: bytes) -> None:
    assert cut_trace_fields(raw) is None


def test_both_fields_are_found_at_any_place_and_in_any_spelling() -> None:
    raw = LINE + b"X-REQUEST-ID:a\r\n" + HOST + b"TraceParent: \t" + PARENT + b" \r\n\r\n"
    assert cut_trace_fields(raw) == (PLAIN, (b"a", PARENT, None))


def test_adjacent_trace_fields_are_both_cut() -> None:
    assert values(b"x-request-id: a", b"traceparent: " + PARENT) == (b"a", PARENT)


@pytest.mark.parametrize("value", [b"a", b"~" * 128, b"!", b'a,b;c="d"'])
def test_a_request_id_is_visible_ascii(value: bytes) -> None:
    assert values(b"x-request-id: " + value) == (value, None)


@pytest.mark.parametrize("value", [b"", b"~" * 129, b"a b", b"a\tb", b"\xff"])
def test_any_other_request_id_counts_as_absent(value: bytes) -> None:
    assert values(b"x-request-id: " + value) == (None, None)


def test_a_repeated_trace_field_counts_as_absent() -> None:
    assert values(b"x-request-id: a", b"x-request-id: a") == (None, None)
    assert values(b"traceparent: " + PARENT, b"traceparent: " + PARENT) == (None, None)


@pytest.mark.parametrize("value", [PARENT, b"01" + PARENT[2:], b"cc" + PARENT[2:] + b"-more"])
def test_a_traceparent_of_this_or_a_later_version_is_valid(value: bytes) -> None:
    assert values(b"traceparent: " + value) == (None, value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + b"0",
        PARENT + b"-more",
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        b"01" + PARENT[2:] + b"more",
        b"01" + PARENT[2:] + b"-" + b"x" * 73,
    ],
)
def test_any_other_traceparent_counts_as_absent(value: bytes) -> None:
    assert values(b"traceparent: " + value) == (None, None)


@pytest.mark.parametrize(
    "raw",
    [
        head(b"x-request-id: a", b" folded"),
        head(b"x-request-id: a", b"b : c"),
        LINE + b"x-request-id: a\r\n\r\n",
    ],
)
def test_a_malformed_head_stays_malformed_without_its_trace_fields(raw: bytes) -> None:
    found = cut_trace_fields(raw)
    assert found is not None
    for one in (raw, found[0]):
        with pytest.raises(InvalidRequest):
            parse_head(one)


def test_a_head_above_the_bounds_is_not_cut() -> None:
    fields = [b"a: b"] * 255
    assert cut_trace_fields(head(*fields[1:], b"x-request-id: a")) is not None
    assert cut_trace_fields(head(*fields, b"x-request-id: a")) is None
    long = b"a: " + b"b" * (64 * 1024)
    assert cut_trace_fields(head(long, b"x-request-id: a")) is None


# X-Forwarded-For


def test_forwarded_addresses_form_one_list_in_their_order() -> None:
    raw = head(b"X-Forwarded-For: a, b ", b"x-request-id: i", b"x-forwarded-for:c")
    found = cut_trace_fields(raw)
    assert found == (PLAIN, (b"i", None, b"a, b,c"))


def test_other_fields_of_proxies_are_kept() -> None:
    names = (b"x-forwarded-host", b"x-forwarded-fox", b"x-forwarded-for2", b"my-x-forwarded-for")
    raw = head(*(name + b": a" for name in names))
    assert cut_trace_fields(raw) is None


def test_only_the_end_of_a_long_forwarded_list_is_kept() -> None:
    raw = head(b"x-forwarded-for: " + b"9" * 5000 + b", 10.0.0.1")
    found = cut_trace_fields(raw)
    assert found is not None
    forwarded = found[1].forwarded
    assert forwarded is not None
    assert len(forwarded) == 1024
    assert forwarded.endswith(b"9, 10.0.0.1")


@pytest.mark.parametrize("value", [b"a\0b", b"a\nb", b"a\r\n folded"])
def test_a_malformed_forwarded_field_makes_the_head_malformed(value: bytes) -> None:
    raw = head(b"x-forwarded-for: " + value)
    found = cut_trace_fields(raw)
    for one in (raw, raw if found is None else found[0]):
        with pytest.raises(InvalidRequest):
            parse_head(one)
