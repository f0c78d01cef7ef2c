"""Header fields that hold lists."""

from __future__ import annotations

from topics.formats.api.fields import LIST_MAX, list_members


def test_a_list_has_at_most_list_max_members() -> None:
    assert list_members(b" A ,b") == [b"a", b"b"]
    assert list_members(b"a," * LIST_MAX + b"close") == [b"a"] * LIST_MAX
