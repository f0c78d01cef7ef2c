"""Offsets: options are converted to seqs, and checkpoints are decoded as they were encoded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.source.connection import BadOption
from topics.spark.source.offsets import (
    EARLIEST,
    LATEST,
    BadOffset,
    Bounds,
    Position,
    decode,
    encode,
    seq_before,
)

NAMES = st.text(min_size=1, max_size=5)
NUMBER = st.integers(0, 2**63 - 1)
HEADS = st.just((0, 0)) | st.tuples(st.integers(1), NUMBER)
POSITIONS = st.tuples(NUMBER, NUMBER, NUMBER, HEADS).map(
    lambda found: Position(*found[:3], *found[3])
)


def test_a_start_is_inclusive_and_an_end_is_exclusive() -> None:
    # The offsets from 5 to below 10 are the range (4, 9] of seqs: 5, 6, 7, 8, 9.
    assert (seq_before(5), seq_before(10), seq_before(0)) == (4, 9, 0)


@pytest.mark.parametrize(
    ("text", "orders", "others"),
    [
        ("earliest", EARLIEST, EARLIEST),
        (" LATEST ", LATEST, LATEST),
        ('{"orders": 42}', 42, LATEST),
        ('{"orders": {"1": 42}}', 42, LATEST),
        ('{"orders": {"0": 1, "1": -2}}', EARLIEST, LATEST),
        ('{"orders": {"0": 7}}', LATEST, LATEST),
    ],
)
def test_bounds_are_keywords_or_json(text: str, orders: int, others: int) -> None:
    bounds = Bounds.parse("startingOffsets", text, LATEST)
    assert (bounds.of("orders", 1), bounds.of("others", 1)) == (orders, others)


def test_words_returns_the_keywords_that_an_option_contains() -> None:
    assert Bounds("o", EARLIEST).words() == {EARLIEST}
    assert Bounds.parse("o", '{"a": -1, "b": 3}', EARLIEST).words() == {EARLIEST, LATEST}


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "",
        "{}",
        "[1]",
        '{"a": {}}',
        '{"a": {"-1": 1}}',
        '{"a": "1"}',
        '{"a": -3}',
        '{"a": {"x": 1}}',
        '{"a": true}',
    ],
)
def test_invalid_bounds_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadOption, match=r"option startingOffsets is .* earliest, latest or JSON"):
        Bounds.parse("startingOffsets", text, LATEST)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, POSITIONS)))
def test_a_checkpoint_is_read_as_it_was_written(offsets: dict[str, dict[str, Position]]) -> None:
    assert decode(json.loads(json.dumps(encode(offsets)))) == offsets


def test_user_info_in_the_server_names_of_an_old_checkpoint_is_dropped() -> None:
    at = {"t": Position(3, 7)}
    assert decode({"https://u:p@h:1": at, "b": {}}) == {"https://h:1": at, "b": {}}


def test_equal_offsets_are_equal_texts() -> None:
    one, two = Position(1, 1), Position(2, 2)
    sorted_one = json.dumps(encode({"a": {"x": one, "y": two}, "b": {}}))
    assert json.dumps(encode({"b": {}, "a": {"y": two, "x": one}})) == sorted_one
    assert json.dumps(encode({"a": {"x": two}})) == '{"a": {"x": [2, 2, 0, 0, 0]}}'


@pytest.mark.parametrize(
    "value",
    [
        {"orders": {"0": 42}},
        {"logOffset": 3},
        {"a": {"t": {"seq": 1, "epoch": 1}}},
        {"a": {"t": [1]}},
        {"a": {"t": [1, -1]}},
        {"a": {"t": [1, "1"]}},
        {"a": {"t": [1, 1, 1, 1, 1, 1]}},
    ],
)
def test_an_offset_of_another_source_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(BadOffset, match="use another checkpointLocation"):
        decode(value)
