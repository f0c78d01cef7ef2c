"""Content negotiation of request bodies and responses."""

from __future__ import annotations

import time

import pytest

from topics.errors import UnsupportedMediaType
from topics.formats.api.request_heads import HeadFields
from topics.front.media import accepts_events, accepts_gzip, check_body_media, prefers_json


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        *((b"", False), (b"gzip", True), (b"br, GZIP;q=0.5", True), (b"gzip;q=0", False)),
        *((b"*", True), (b"*, gzip;q=0", False)),
        *((b"gzip;q=0.0.1", False), (b"gzip;level=1", False)),
    ],
)
def test_gzip_is_accepted_by_name_or_by_star(value: bytes, accepted: bool) -> None:
    assert accepts_gzip(value) is accepted


@pytest.mark.parametrize(
    ("media", "coding", "gzip_in", "fails"),
    [
        (b"application/json", b"", False, False),
        (b'Application/JSON; charset="UTF-8"', b"identity", False, False),
        (b"application/json", b"x-gzip", True, False),
        (b"application/json", b"br", True, True),
        (b"text/plain", b"gzip", True, True),
    ],
)
def test_a_body_must_be_json_in_utf_8_with_or_without_gzip(
    media: bytes, coding: bytes, gzip_in: bool, fails: bool
) -> None:
    fields = HeadFields([(b"content-type", media), (b"content-encoding", coding)])
    found, wrong = check_body_media(fields)
    assert (found, isinstance(wrong, UnsupportedMediaType)) == (gzip_in, fails)


def test_many_blanks_in_an_accept_encoding_are_parsed_quickly() -> None:
    began = time.process_time()
    assert not accepts_gzip(b"gzip" + b" " * 60_000 + b"@")
    assert time.process_time() - began < 1  # backtracking would take minutes


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        (b"", False),
        (b"*/*", False),
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/json, text/plain, */*", True),
        (b"application/json;q=0.5, text/plain", False),
        (b"application/json;q=0.5, */*;q=0.1", True),
        (b"application/json;q=0.5, text/*;q=0.4, */*", True),
        (b"application/json;q=0, */*", False),
        (b"application/json;q=x", False),
        (b"application/*", False),
        (b"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", False),
    ],
)
def test_json_is_preferred_only_if_it_is_listed_and_not_ranked_below_text(
    accept: bytes, preferred: bool
) -> None:
    assert prefers_json(accept) is preferred


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [
        (b"", True),
        (b"*/*", True),
        (b"text/*", True),
        (b"text/event-stream;q=0.5", True),
        (b"application/json", False),
        (b"text/event-stream;q=0, */*", False),
        (b"text/*;q=0.0, text/event-stream", True),
    ],
)
def test_the_most_specific_range_applies_to_events(accept: bytes, allowed: bool) -> None:
    assert accepts_events(accept) is allowed
