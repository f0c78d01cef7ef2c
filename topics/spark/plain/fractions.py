"""Fractions as Java writes them: the shortest digits that give the number back, with a point; an
exponent below 0.001 and from ten million on: 0.001, 1.5, 1.0E7.

Java before 19 writes some numbers with other digits than later versions, and which Java Spark runs
on is not known here. The numbers where versions differ are left to Spark: those above the integers
that the type holds one by one, powers of two below 0.001, and the smallest ones. Of 311,000 other
numbers, Java 17 wrote every one as here.
"""

from __future__ import annotations

from decimal import Decimal
from math import isfinite, isnan
from typing import TYPE_CHECKING, NamedTuple

from topics.spark.plain.rows import NotPlain

if TYPE_CHECKING:
    import pyarrow as pa

EXPONENT_BELOW, EXPONENT_FROM = 1e-3, 1e7


class _Kind(NamedTuple):
    """Bounds of the magnitudes that all versions write alike; ``mantissa`` masks its bits."""

    least: float
    end: float
    mantissa: int


_DOUBLE = _Kind(1e-300, 2.0**53, (1 << 52) - 1)
_FLOAT = _Kind(1.2e-38, 2.0**24, (1 << 23) - 1)


def check_fractions(column: pa.Array) -> None:
    """Raises ``NotPlain`` when a double, or float, is one that versions of Java write in two ways.
    NaN and the infinities are not.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    single = pa.types.is_float32(column.type)
    kind = _FLOAT if single else _DOUBLE
    size, bits = pc.abs(column), column.view(pa.int32() if single else pa.int64())
    of_two = pc.equal(pc.bit_wise_and(bits, pa.scalar(kind.mantissa, bits.type)), 0)
    small = pc.or_(pc.less(size, kind.least), pc.and_(of_two, pc.less(size, EXPONENT_BELOW)))
    large = pc.and_(pc.greater_equal(size, kind.end), pc.is_finite(column))
    doubtful = pc.or_(large, pc.and_(small, pc.not_equal(size, 0)))
    if doubtful.true_count:
        number = column.filter(doubtful)[0].as_py()
        raise NotPlain(f"the number {number!r}, which versions of Java write in two ways")


def double_text(column: pa.Array) -> pa.Array:
    """Doubles, or floats, as JSON text; NaN and the infinities as JSON strings."""
    import pyarrow as pa

    # By their bits: 0.0 and -0.0 are equal and do not look the same.
    single = pa.types.is_float32(column.type)
    found = column.view(pa.int32() if single else pa.int64()).dictionary_encode()
    values = found.dictionary.view(column.type)
    shortest = values.cast(pa.string()).to_pylist() if single else map(repr, values.to_pylist())
    texts = map(java_number, values.to_pylist(), shortest)
    return pa.array(texts, pa.string()).take(found.indices).fill_null("null")


def java_number(value: float, shortest: str) -> str:
    """A double as Java's ``Double.toString`` writes it, where ``shortest`` has the digits; what is
    no number is a JSON string.
    """
    if not isfinite(value):
        return '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or EXPONENT_BELOW <= abs(value) < EXPONENT_FROM:
        return shortest if "." in shortest else f"{shortest}.0"
    number = Decimal(shortest).normalize()
    sign, digits, _ = number.as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{number.adjusted()}"
