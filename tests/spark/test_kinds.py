"""The type of a column of text, by how its values are written."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.kinds import FRACTION, HUGE, LONG, SHORT, TEXT, TRUTH, kinds_of, type_of

# The rules in another form: one pattern each, the first that fits.
RULES = (
    (SHORT, r"0|-?[1-9][0-9]{0,14}"),
    (LONG, r"-?[1-9][0-9]{15,17}"),
    (HUGE, r"-?[1-9][0-9]{18,37}"),
    (FRACTION, r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?"),
    (TRUTH, r"true|false"),
    (TEXT, r"[\s\S]*"),
)

values = st.one_of(
    st.none(),
    st.text(st.sampled_from("0123456789.eE+-truefals \n"), max_size=22),
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map("{:f}".format),
    st.sampled_from(["true", "false", "True", "-0", "007", "+5", "1d", "0.10", "1e5", "", "٣"]),
)


def kind(value: str) -> int:
    found = next(bit for bit, pattern in RULES if re.fullmatch(pattern, value))
    return found if found != FRACTION or is_exact(value) else TEXT


def is_exact(number: str) -> bool:
    """15 digits, without zeros in front, below 2**53."""
    digits = re.split("[eE]", number)[0].lstrip("-").replace(".", "")
    if number.lstrip("-").startswith("0."):
        digits = digits.lstrip("0")
    return len(digits) <= 15 and abs(float(number)) < 2**53


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("900719925474099.37", TEXT),
        ("90071992547409.37", TEXT),
        ("9007199254740.37", FRACTION),
        ("0.123456789012345", FRACTION),
        ("0.000123456789012345", FRACTION),
        ("0.30000000000000004", TEXT),
        ("366379464625067e2", TEXT),  # Java 17 writes 3.6637946462506704E16
        ("366379464625067e1", FRACTION),
        ("1.0E7", FRACTION),
    ],
)
def test_a_fraction_is_what_a_double_gives_back(value: str, expected: int) -> None:
    assert kinds_of(pa.array([value])) == expected == kind(value)


@given(values)
def test_a_fraction_has_its_digits_again(value: str | None) -> None:
    if value is not None and kinds_of(pa.array([value])) == FRACTION:
        assert Decimal(repr(float(value))) == Decimal(value)


@given(st.lists(values, max_size=12))
def test_kinds_are_those_of_the_single_values(column: list[str | None]) -> None:
    expected = 0
    for value in column:
        expected |= 0 if value is None else kind(value)
    assert kinds_of(pa.array(column, pa.string())) == expected


def test_a_type_holds_every_kind_exactly() -> None:
    assert type_of(0) == "string"
    assert type_of(SHORT | LONG) == "bigint"
    assert type_of(LONG | HUGE) == "decimal(38,0)"
    assert type_of(SHORT | FRACTION) == "double"
    assert type_of(LONG | FRACTION) == "string"
    assert type_of(TRUTH) == "boolean"
    assert type_of(TRUTH | SHORT) == "string"
    assert type_of(SHORT | TEXT) == "string"
