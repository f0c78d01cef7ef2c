"""Members of a JSON object, compared with Python's JSON decoder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.api.json_members import member, with_members, without_members

SPACE = st.sampled_from(["", "", " ", "\n\t", "\r "])
KEYS = st.sampled_from(
    ['"a"', '"b"', r'"\u0061"', r'"q\""', '"{"', '"é"', r'"\\"', '""', '","', r'"\ud83d\ude00"']
)
SCALARS = st.sampled_from(
    ["1", "1.10", "1E400", "null", "true", '""', '"}"', r'"\"]"', r'"\\"', '":,{"', '"é😀"', "-0"]
)


def _listed(items: list[tuple[str, str, str]], opened: str, closed: str) -> str:
    return opened + ",".join(before + text + after for before, text, after in items) + closed


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(KEYS, SPACE, SPACE, values).map(lambda m: f"{m[0]}{m[1]}:{m[2]}{m[3]}")
    return st.one_of(
        st.lists(st.tuples(SPACE, pairs, SPACE), max_size=5).map(lambda m: _listed(m, "{", "}")),
        SPACE.map(lambda space: "{" + space + "}"),
    )


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(st.tuples(SPACE, inner, SPACE), max_size=3).map(lambda m: _listed(m, "[", "]"))
        | _objects(inner)
    ),
    max_leaves=6,
)
OBJECTS = _objects(VALUES).map(str.encode)


def pairs(obj: bytes) -> list[tuple[str, object]]:
    """Return the members as Python decodes them, with duplicate keys, and numbers as they were
    sent.
    """
    if not obj:
        return []
    found = json.loads(
        obj,
        object_pairs_hook=list,
        parse_int=str,
        parse_float=str,
    )
    assert isinstance(found, list)
    return found


@given(OBJECTS, st.sets(st.sampled_from(["a", "b", 'q"', "{", "é", "\\", "", ",", "😀"])))
def test_members_are_removed_and_the_others_are_kept(obj: bytes, removed: set[str]) -> None:
    remaining = without_members(obj, removed.__contains__)
    kept = [pair for pair in pairs(obj) if pair[0] not in removed]
    assert pairs(remaining) == kept
    assert (remaining == b"") == (not kept)
    if len(kept) == len(pairs(obj)) and kept:
        assert remaining == obj


@given(OBJECTS, st.lists(st.tuples(KEYS, VALUES), max_size=3))
def test_members_are_added_at_the_end(obj: bytes, more: list[tuple[str, str]]) -> None:
    extra = ",".join(f"{key}:{value}" for key, value in more).encode()
    extended = with_members(obj, extra)
    assert pairs(extended) == pairs(obj) + pairs(b"{%b}" % extra)
    assert extended[: len(obj) - 1] == obj[:-1] or not pairs(obj)
    assert pairs(with_members(b"", extra)) == pairs(b"{%b}" % extra)


@given(OBJECTS, st.sampled_from(["a", "b", 'q"', "é", "x"]))
def test_the_last_member_of_a_name_is_returned(obj: bytes, name: str) -> None:
    found = member(obj, name)
    last = [value for key, value in pairs(obj) if key == name][-1:]
    assert (found is None) == (not last)
    if found is not None:
        assert pairs(b'{"it":%b}' % found) == [("it", *last)]
        assert found == found.strip()


@pytest.mark.parametrize(
    ("obj", "remaining"),
    [
        (b'{"a":1,"b" : 1.10 }', b'{"b" : 1.10 }'),
        (b'{ "b":2 , "a":1 }', b'{ "b":2 }'),
        (b'{"b":1,"a":{"b":2},"b":3}', b'{"b":1,"b":3}'),
        (b'{"b":{"a":1}}', b'{"b":{"a":1}}'),
        (rb'{"\u0061":1,"b":"\u0061"}', rb'{"b":"\u0061"}'),
        (b'{"b":"\\"a\\":1,"}', b'{"b":"\\"a\\":1,"}'),
        (b'{"a":1,"a":2}', b""),
        (b"{ \n}", b""),
        (b"", b""),
    ],
)
def test_the_remaining_members_keep_their_bytes(obj: bytes, remaining: bytes) -> None:
    assert without_members(obj, "a".__eq__) == remaining


def test_adding_no_members_keeps_the_object() -> None:
    assert with_members(b"", b"") == b""
    assert with_members(b"{ }", b"") == b"{ }"
    assert with_members(b"{ }", b'"a":1') == b'{"a":1}'
    assert with_members(b'{"b":1 }', b'"a":1') == b'{"b":1 ,"a":1}'


@pytest.mark.slow
def test_any_nesting_depth_and_string_length_is_supported() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    text = b'"' + b'\\"{' * 100_000 + b'"'
    obj = b'{"a":%b,"b":%b,"c":1}' % (deep, text)
    assert member(obj, "a") == deep
    assert member(obj, "b") == text
    assert without_members(obj, "ab".__contains__) == b'{"c":1}'
