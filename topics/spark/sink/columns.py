"""The columns of a DataFrame that become members of records (the table in topics/docs/spark.md).

Other columns are ignored, as in Kafka's sink, so that rows that a read has returned can be written.
A name that is similar to one of these columns is refused, because its values would be lost
silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.spark.rows import BadColumns as BadColumns
from topics.spark.source.connection import SIMILARITY

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The accepted types by `DataType.simpleString`, without type parameters, the usual type first.
TEXT: Final = ("string", "varchar", "char")
ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = {
    "key": (*TEXT, "binary"),
    "value": (*TEXT, "binary"),
    "topic": TEXT,
    "node": TEXT,
    "headers": (*TEXT, "map<string,string>"),
    "delay_ms": ("bigint", "int"),
    "deliver_at": ("timestamp", "bigint"),
}
OTHER_NAMES: Final = {"data": "value", "tag": "key", "$tag": "key", "meta": "headers"}
ADVICE: Final = {
    "value": "make it JSON: to_json(value) for a struct, map, array or variant; else"
    " to_json(struct(...)), or cast it to a string",
    "headers": "make it a JSON object: to_json(headers)",
}
NO_VALUE: Final = (
    "there is no column value; write df.select(to_json(struct('*')).alias('value')) or"
    " topics.spark.records(df)"
)


class Columns(NamedTuple):
    """The index of each column from which a record is built; None if the column is absent."""

    value: int
    key: int | None = None
    topic: int | None = None
    headers: int | None = None
    node: int | None = None
    delay_ms: int | None = None
    deliver_at: int | None = None

    @classmethod
    def of(cls, schema: StructType, *, topic: str | None) -> Columns:
        """Return the columns of a DataFrame. ``topic`` is the option, which replaces the column.
        Raises `BadColumns`.
        """
        names = [field.name for field in schema.fields]
        used = [name for name in ACCEPTED if name != "topic" or topic is None]
        found = {name: names.index(name) for name in used if name in names}
        for name, index in found.items():
            if names.count(name) > 1:
                raise BadColumns(f"there are {names.count(name)} columns {name}")
            _check_type(name, schema.fields[index].dataType.simpleString())
        missing = [name for name in used if name not in found]
        for name in names:
            if name not in found and (meant := _meant_by(name, missing)):
                raise BadColumns(f"a write has no column {name}; is it {meant}? Rename or drop it")
        if "value" in missing:
            raise BadColumns(f"{NO_VALUE} (the columns are: {', '.join(names)})")
        if "topic" in missing:
            raise BadColumns("no topic is named: set the option topic, or add a column topic")
        return cls(**found)


def _meant_by(name: str, missing: list[str]) -> str | None:
    """Return the missing column that a similar name probably means."""
    meant = OTHER_NAMES.get(name.lower())
    if meant not in missing:
        meant = next(iter(get_close_matches(name.lower(), missing, n=1, cutoff=SIMILARITY)), None)
    return meant


def _check_type(name: str, kind: str) -> None:
    accepted = ACCEPTED[name]
    if re.split("[ (]", kind)[0] not in accepted:
        advice = ADVICE.get(name, f"cast it to {accepted[0]}")
        raise BadColumns(f"the column {name} is {kind}, not {accepted[0]}; {advice}")
