"""Pushdown: the filters of a query that choose ranges of seqs.

Comparisons of ``offset`` with a number and of ``topic`` with names become a `Restriction`, exactly,
so Spark need not apply them again. All other filters stay with Spark.

It is off unless the option ``pushdown`` is true, because Spark 4.3 keeps the ranges of a query that
pushed filters with the DataFrame, and takes them for the DataFrame's next query that pushes none
(tests/spark/source/test_pushdown.py shows it). Whoever turns it on also sets
``spark.sql.python.filterPushdown.enabled``, and loads the DataFrame anew for each query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from topics.spark.source.offsets import after_of, last_of, offset_after
from topics.spark.source.plan import Restriction

NEVER_NULL = (("offset",), ("topic",), ("partition",), ("timestamp",))


def restrict(filters: Sequence[Filter]) -> tuple[Restriction, list[Filter]]:
    """What the filters leave of every topic, and the filters that Spark has to apply itself."""
    found, rest = Restriction(), []
    for one in filters:
        narrowed = _narrow(found, one)
        if narrowed is None:
            rest.append(one)
        else:
            found = narrowed
    return found, rest


def _narrow(found: Restriction, one: Filter) -> Restriction | None:
    """The restriction and this filter too; None when ranges cannot say it."""
    attribute = getattr(one, "attribute", None)
    if isinstance(one, IsNotNull) and attribute in NEVER_NULL:
        return found
    if attribute == ("offset",):
        return _narrow_offset(found, one)
    if attribute == ("topic",):
        return _narrow_topics(found, one)
    return None


def _narrow_topics(found: Restriction, one: Filter) -> Restriction | None:
    match one:
        case EqualTo(value=str(name)):
            names: Iterable[str] = [name]
        case In(value=(*values,)) if all(isinstance(value, str) for value in values):
            names = values
        case _:
            return None
    wanted = frozenset(names)
    return found._replace(topics=wanted if found.topics is None else found.topics & wanted)


def _narrow_offset(found: Restriction, one: Filter) -> Restriction | None:
    value = getattr(one, "value", None)
    if type(value) is not int:
        return None
    first: int = 0
    end: int | None = None
    match one:
        case EqualTo():
            first, end = value, offset_after(value)
        case GreaterThan():
            first = offset_after(value)
        case GreaterThanOrEqual():
            first = value
        case LessThan():
            end = value
        case LessThanOrEqual():
            end = offset_after(value)
        case _:
            return None
    last = found.last
    if end is not None:
        last = last_of(end) if last is None else min(last, last_of(end))
    return found._replace(after=max(found.after, after_of(first)), last=last)
