"""Request targets in origin form and absolute form."""

from __future__ import annotations

import pytest

from topics.formats.api.request_targets import authority_of, origin_form


@pytest.mark.parametrize(
    ("target", "authority", "origin"),
    [
        (b"/a?b", (), b"/a?b"),
        (b"http://host:1/a?b", (b"host:1",), b"/a?b"),
        (b"HTTPS://host", (b"host",), b"/"),
        (b"http://host?b", (b"host",), b"/?b"),
        (b"http:///a", (), b"http:///a"),
        (b"ftp://host/a", (), b"ftp://host/a"),
    ],
)
def test_absolute_form_is_read_as_authority_and_origin_form(
    target: bytes, authority: tuple[bytes, ...], origin: bytes
) -> None:
    assert (authority_of(target), origin_form(target)) == (authority, origin)
