"""The type of a column of text, by how its values are written."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.kinds import FRACTION, HUGE, LONG, SHORT, TEXT, TRUTH, kinds_of, type_of

# The rules in another form: one pattern each, the first that fits.
FRACTION_FORM = r"-?(?=[0-9.]{1,18}([eE]|$))(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?"
RULES = (
    (SHORT, r"0|-?[1-9][0-9]{0,14}"),
    (LONG, r"-?[1-9][0-9]{15,17}"),
    (HUGE, r"-?[1-9][0-9]{18,37}"),
    (FRACTION, FRACTION_FORM),
    (TRUTH, r"true|false"),
    (TEXT, r"[\s\S]*"),
)

values = st.one_of(
    st.none(),
    st.text(st.sampled_from("0123456789.eE+-truefals \n"), max_size=22),
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.sampled_from(["true", "false", "True", "-0", "007", "+5", "1d", "0.10", "1e5", "", "٣"]),
)


def kind(value: str) -> int:
    return next(bit for bit, pattern in RULES if re.fullmatch(pattern, value))


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
