"""Pages of lists: sizes are clamped, cursors are opaque and say what they hold."""

from __future__ import annotations

import base64

import pytest

from topics.errors import InvalidRequest
from topics.front.routes.paging import NAMES, PAGE_SIZE_MAX, SEQS, page_size


def packed(document: bytes) -> str:
    return base64.urlsafe_b64encode(document).decode()


@pytest.mark.parametrize("after", ["a", "jobs:x-1._", "a" * 255])
def test_a_cursor_of_names_holds_a_name(after: str) -> None:
    cursor = NAMES.encode(after)
    assert "=" not in cursor
    assert NAMES.decode("cursor", cursor) == after
    assert NAMES.decode("cursor", cursor + "=") == after


@pytest.mark.parametrize("after", [0, 1, 2**63 - 1])
def test_a_cursor_of_seqs_holds_a_seq(after: int) -> None:
    assert SEQS.decode("cursor", SEQS.encode(after)) == after


@pytest.mark.parametrize(
    "value",
    [
        "",
        "!",
        "\xe9",
        packed(b"{}"),
        packed(b'{"after":1.5}'),
        packed(b'{"after":-1}'),
        packed(b'{"after":9223372036854775808}'),
        packed(b'{"after":1,"before":2}'),
        NAMES.encode("1"),
    ],
)
def test_anything_else_is_no_cursor_of_seqs(value: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SEQS.decode("cursor", value)
    assert raised.value.detail == {"parameter": "cursor"}


def test_a_cursor_of_seqs_is_none_of_names() -> None:
    with pytest.raises(InvalidRequest):
        NAMES.decode("cursor", SEQS.encode(1))


@pytest.mark.parametrize(("value", "size"), [("0", 1), ("7", 7), ("9" * 20, PAGE_SIZE_MAX)])
def test_a_page_size_is_clamped(value: str, size: int) -> None:
    assert page_size("page_size", value) == size
