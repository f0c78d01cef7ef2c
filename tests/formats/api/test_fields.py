"""Header fields that hold lists."""

from __future__ import annotations

from topics.formats.api.fields import LIST_MAX, HeadFields, list_members


def test_a_list_has_at_most_list_max_members() -> None:
    assert list_members(b" A ,b") == [b"a", b"b"]
    assert list_members(b"a," * LIST_MAX + b"close") == [b"a"] * LIST_MAX


def test_fields_without_one_are_all_others_in_order() -> None:
    fields = HeadFields([(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")])
    rest = fields.without(b"a")
    assert (len(rest), rest.values(b"a")) == (2, [])
    assert (rest.values(b"b"), rest.values(b"c")) == ([b"2"], [b"4"])
