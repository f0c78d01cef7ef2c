"""Names of topics (§1.1) and routers (§6), their shard, and allowlists (§0.2)."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.names import covered, shard_of, valid_router_name, valid_topic_name

FIRST = set(string.ascii_letters + string.digits)
OTHERS = FIRST | set("._:-")


@pytest.mark.parametrize(
    "name", ["a", "Z", "0", "a.b_c:d-e", "render-queue:tenantA", "a" * 255, "9" + "-" * 254]
)
def test_valid_topic_names_are_accepted(name: str) -> None:
    assert valid_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "a" * 256, ".a", "-a", "_a", ":a", "a\n", "a\nb", "\na", "a b", "a/b", "a>b", "é"),
        *("aé", "\u0661", "a\u0661", "a\0", "ａ", "a%20"),
    ],
)
def test_invalid_topic_names_are_rejected(name: str) -> None:
    assert not valid_topic_name(name)


@given(st.text(max_size=300))
def test_a_topic_name_is_valid_if_its_length_and_every_character_are_allowed(name: str) -> None:
    assert valid_topic_name(name) == (
        1 <= len(name) <= 255 and name[0] in FIRST and set(name) <= OTHERS
    )


@given(st.text(max_size=300) | st.text("aZ9._:->\n", max_size=300))
def test_a_router_name_may_also_contain_the_greater_than_sign(name: str) -> None:
    assert valid_router_name(name) == (
        1 <= len(name) <= 255 and name[0] in FIRST and set(name) <= OTHERS | {">"}
    )
    assert not valid_topic_name(name) or valid_router_name(name)


@pytest.mark.parametrize(
    ("name", "valid"),
    [("a->b", True), ("a" + ">" * 254, True), (">a", False), ("->", False), ("a->b\n", False)],
)
def test_a_router_name_begins_with_a_letter_or_digit(name: str, valid: bool) -> None:
    assert valid_router_name(name) is valid


def test_the_shard_of_a_name_never_changes() -> None:
    # CRC-32C of the name. "123456789" is the check value that its specifications give.
    crcs = {"123456789": 0xE3069283, "a": 0xC1D04330, "jobs": 0xD256D3BC, "orders": 0x09A7C08A}
    for name, crc in crcs.items():
        assert [shard_of(name, shards) for shards in (1, 2, 3, 64)] == [
            crc % shards for shards in (1, 2, 3, 64)
        ]


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True), st.integers(1, 64))
def test_every_name_has_a_shard(name: str, shards: int) -> None:
    assert 0 <= shard_of(name, shards) < shards


def test_names_spread_over_the_shards() -> None:
    counts = [0] * 4
    for number in range(4000):
        counts[shard_of(f"topic-{number}", 4)] += 1
    assert min(counts) > 800


@pytest.mark.parametrize(
    ("name", "prefixes", "expected"),
    [
        ("a", None, True),
        ("a", [], False),
        ("tenant1", ["tenant"], True),
        ("tenant1", ["tenant2"], False),
        ("b.x", ["a.", "b."], True),
        ("b", ["b."], False),
        ("a", [""], True),
    ],
)
def test_an_allowlist_is_a_list_of_prefixes(
    name: str, prefixes: list[str] | None, expected: bool
) -> None:
    assert covered(name, prefixes) is expected
