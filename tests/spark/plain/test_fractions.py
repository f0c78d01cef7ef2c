"""Fractions have the form of Java; `test_columns` compares them with Spark."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.plain.fractions import check_fractions, double_text, java_number
from topics.spark.plain.rows import NotPlain

pa = pytest.importorskip("pyarrow")


@given(st.floats())
def test_a_double_is_what_json_reads_and_has_the_form_of_java(value: float) -> None:
    text = java_number(value, repr(value))
    read = float(json.loads(text))
    assert struct.pack("d", read) == struct.pack("d", value) or read != read
    assert ("E" in text) == (value != 0 and not 1e-3 <= abs(value) < 1e7 and text[0] != '"')
    assert "." in text or text[0] == '"'


@given(st.lists(st.floats(width=32)))
def test_a_float_is_written_with_its_own_digits(values: list[float]) -> None:
    texts = double_text(pa.array(values, pa.float32())).to_pylist()
    read = pa.array([float(json.loads(text)) for text in texts], pa.float32())
    assert str(read.to_pylist()) == str(values)


@pytest.mark.parametrize("value", [2.0**53, 1e23, 2.0**-44, 5e-324, 1e-310, -1e300])
def test_what_versions_of_java_write_in_two_ways_is_left_to_spark(value: float) -> None:
    for sign in (1, -1):
        with pytest.raises(NotPlain, match="versions of Java"):
            check_fractions(pa.array([None, 0.5, sign * value]))


@pytest.mark.parametrize("value", [2.0**24, 3.4e38, 2.0**-20, 1e-40])
def test_floats_have_bounds_of_their_own(value: float) -> None:
    with pytest.raises(NotPlain):
        check_fractions(pa.array([value], pa.float32()))


def test_other_numbers_are_written_here() -> None:
    usual = [0.0, -0.0, None, 0.5, 2.0**-9, 1e-5, -1e-299, 2.0**53 - 1, float("nan"), float("-inf")]
    check_fractions(pa.array(usual))
    check_fractions(pa.array([0.1, 16_777_215.0, 1e-37, float("inf")], pa.float32()))
