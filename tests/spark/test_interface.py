"""The table of options and columns, in the code and in the documentation."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tests.docs import spark
from topics.spark.interface import COLUMNS, OPTIONS, known_names
from topics.spark.sink.columns import ACCEPTED
from topics.spark.source.columns import TYPES


def test_the_tables_of_the_page_are_current() -> None:
    page = spark.PAGE.read_text()
    assert page == spark.with_tables(page), "python -m tests.docs.spark --write"


def test_every_column_has_a_description() -> None:
    assert {*COLUMNS} == {*TYPES, *ACCEPTED}


def test_an_option_is_described_once_for_each_use() -> None:
    for use in ("read", "write"):
        names = [option.name for option in OPTIONS if option.use in (use, "both")]
        assert len(names) == len(set(names)) == len(known_names(use))
