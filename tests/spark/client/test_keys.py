"""The idempotency key of a chunk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.api.limits import KEY_MAX_CHARS
from topics.spark.client.keys import chunk_key

PLACE = ("batch:job", "flights", 3, 7, 5000, b"body")


def test_the_same_work_has_the_same_key_for_ever() -> None:
    # A golden value: another one would make every repeated job of a live topic append its records
    # again.
    assert chunk_key(*PLACE) == "spark-ab35937f246ec48ed0207e00eb8f985f2797ec9f"


def test_each_part_of_the_place_and_the_content_make_another_key() -> None:
    others = [
        ("batch:job2", *PLACE[1:]),
        (PLACE[0], "flights2", *PLACE[2:]),
        (*PLACE[:2], 4, *PLACE[3:]),
        (*PLACE[:3], 8, *PLACE[4:]),
        (*PLACE[:4], 4999, PLACE[5]),
        (*PLACE[:5], b"bodz"),
    ]
    keys = {chunk_key(*place) for place in [PLACE, *others]}
    assert len(keys) == len(others) + 1


def test_parts_cannot_run_into_each_other() -> None:
    assert chunk_key("a', 'b", "c", 0, 0, 0, b"") != chunk_key("a", "b', 'c", 0, 0, 0, b"")
    assert chunk_key("s", "t", 1, 11, 0, b"") != chunk_key("s", "t", 11, 1, 0, b"")


@given(st.text(), st.text())
def test_a_key_is_short_ascii_whatever_the_names(scope: str, topic: str) -> None:
    key = chunk_key(scope, topic, 2**31, 2**40, 10_000, b"x")
    assert key.isascii()
    assert 0 < len(key) <= KEY_MAX_CHARS
