"""Kinds of values: the type of a column of text, by how its values are written.

A column holds numbers, or true and false, when each of its values is written as in JSON and one
type holds them all exactly; else it holds text: 007 and +5 are text, and so are fractions that a
double does not give back digit by digit. Nulls say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# How a value may be written; the first that fits. Arrow's patterns cannot look ahead: a value fits
# all of its kind. A double gives 15 digits back, and every Java writes them so below 2**53.
SHORT, LONG, HUGE, FRACTION, TRUTH, TEXT = (1 << bit for bit in range(6))
FRACTION_END = 2.0**53
KINDS = (
    (SHORT, (r"\A(0|-?[1-9][0-9]{0,14})\z",)),
    (LONG, (r"\A-?[1-9][0-9]{15,17}\z",)),
    (HUGE, (r"\A-?[1-9][0-9]{18,37}\z",)),
    (
        FRACTION,
        (
            r"\A-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?\z",
            # 15 digits behind the zeros of a fraction below 1, around a dot, or without one
            r"\A-?(0\.0{0,99}[0-9]{1,15}|[0-9.]{1,16})([eE]|\z)",
            r"\A-?([0-9]{1,15}([eE]|\z)|[0-9]+\.)",
        ),
    ),
    (TRUTH, (r"\A(true|false)\z",)),
)
# The first type that holds every kind that a column has.
TYPES = (
    ("string", 0),  # nothing but nulls
    ("bigint", SHORT | LONG),
    ("decimal(38,0)", SHORT | LONG | HUGE),
    ("double", SHORT | FRACTION),
    ("boolean", TRUTH),
)


def kinds_of(texts: pa.Array | pa.ChunkedArray) -> int:
    """The kinds of the values of a column of text, as bits."""
    import pyarrow.compute as pc

    kinds = 0
    rest = texts.unique().drop_null()  # most columns say the same thing again and again
    for kind, patterns in KINDS:
        if not len(rest):
            return kinds
        fits = pc.match_substring_regex(rest, patterns[0])
        for more in patterns[1:]:
            fits = pc.and_(fits, pc.match_substring_regex(rest, more))
        if kind == FRACTION:
            numbers = pc.if_else(fits, rest, "0").cast("double")
            fits = pc.and_(fits, pc.less(pc.abs(numbers), FRACTION_END))
        count = len(rest)
        rest = rest.filter(pc.invert(fits))
        kinds |= kind if len(rest) < count else 0
    return kinds | TEXT if len(rest) else kinds


def type_of(kinds: int) -> str:
    """The type of a column that holds these kinds of values."""
    return next((name for name, holds in TYPES if not kinds & ~holds), "string")
