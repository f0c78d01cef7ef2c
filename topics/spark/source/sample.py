"""Sample: the columns of a read without a schema. The type of ``data`` is inferred from records
that are there when the DataFrame is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from pyspark.sql.types import StructField, StructType

from topics.spark.client.http import Record
from topics.spark.source.columns import DATA, TYPES
from topics.spark.source.connection import BadOption, Patience
from topics.spark.source.inference import infer_data
from topics.spark.source.options import ReadOptions
from topics.spark.source.survey import Survey

SAMPLE_RECORDS = 1000  # of each topic, the latest


def schema_of(options: ReadOptions) -> StructType:
    """The columns of a read of servers. Raises `BadOption` for a name that is none, `ServerError`
    when records are needed.
    """
    return columns_of(options, sample(options))


def columns_of(options: ReadOptions, records: Iterable[tuple[str, Record]]) -> StructType:
    """The columns that the options name, or all: with ``inferSchema``, ``data`` in place of
    ``value``; its type is that of ``records``, each with its topic, which are not looked at
    otherwise. Raises `BadOption` for a name that is none.
    """
    infer = options.infer_schema
    names = options.columns or [DATA if name == "value" and infer else name for name in TYPES]
    _check_names(names, infer=infer)
    types = dict(TYPES)
    if DATA in names:
        types[DATA] = infer_data(records)
    return StructType([StructField(name, types[name]) for name in names])


def _check_names(names: Sequence[str], *, infer: bool) -> None:
    if DATA in names and not infer:
        raise BadOption("option columns names data: also give inferSchema=true, or a schema")
    for name in names:
        if name not in TYPES and name != DATA:
            raise BadOption(f"option columns names {name!r}; there are: {', '.join(TYPES)}")
        if names.count(name) > 1:
            raise BadOption(f"option columns names {name!r} twice")


def sample(options: ReadOptions) -> Iterator[tuple[str, Record]]:
    """The latest records of every wanted topic, each with the topic."""
    with closing(Survey(options)) as survey:
        heads = survey.heads(Patience.PLANNING)
        survey.require(heads)
        for server in survey.servers:
            for topic, head in heads[server.name].items():
                for record in survey.latest(server, topic, head, SAMPLE_RECORDS):
                    yield topic, record
