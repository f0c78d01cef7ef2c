"""Sink columns: which columns of a DataFrame become which members of a record.

    value    STRING, BINARY  required; JSON, or text with valueFormat=text; null becomes null
    key      STRING, BINARY  the tag; null: none
    topic    STRING          where the row goes, unless the option topic says it for all
    headers  STRING          a JSON object, the meta; null: none
    node     STRING          the origin of the record; null: what the option node says for all

Other columns (partition, offset, timestamp) are left out, so what was read can be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TEXT = ("string", "varchar", "char")
ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "value": (*TEXT, "binary"),
    "key": (*TEXT, "binary"),
    "topic": TEXT,
    "headers": TEXT,
    "node": TEXT,
}
NO_VALUE = (
    "there is no column value; write df.select(to_json(struct('*')).alias('value')) or"
    " topics.spark.records(df)"
)


class BadColumns(ValueError):
    """Columns that make no records. The text is one line for people."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The place of each column that a record is made of; None for one that is not there."""

    value: int
    key: int | None
    topic: int | None
    headers: int | None
    node: int | None

    @classmethod
    def of(cls, schema: StructType, *, topic: str | None) -> Columns:
        """The columns of a DataFrame; ``topic`` is the option. Raises `BadColumns`."""
        names = [field.name for field in schema.fields]
        places: dict[str, int | None] = {}
        for name, accepted in ACCEPTED.items():
            if names.count(name) > 1:
                raise BadColumns(f"there are {names.count(name)} columns {name}")
            places[name] = names.index(name) if name in names else None
            if name in names and not (name == "topic" and topic is not None):
                _check_type(name, schema.fields[names.index(name)].dataType.typeName(), accepted)
        value = places.pop("value")
        if value is None:
            raise BadColumns(f"{NO_VALUE} (the columns are: {', '.join(names)})")
        if topic is not None:
            places["topic"] = None
        elif places["topic"] is None:
            raise BadColumns("no topic is named: set the option topic, or add a column topic")
        return cls(value=value, **places)


def _check_type(name: str, kind: str, accepted: tuple[str, ...]) -> None:
    if kind in accepted:
        return
    if name == "value":
        advice = "make it JSON: to_json(value) for a struct, map, array or variant; else"
        advice += " to_json(struct(...)), or cast it to a string"
    elif name == "headers":
        advice = "make it a JSON object: to_json(headers)"
    else:
        advice = "cast it to a string"
    raise BadColumns(f"the column {name} is {kind}, not {' or '.join(accepted[:1])}; {advice}")
