"""Registration of the formats in a session."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from topics.spark import data_source, discovered, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_source_has_the_name_of_its_format() -> None:
    assert data_source().name() == "topics"
    assert discovered() is data_source()


def test_the_package_imports_neither_pyspark_nor_pyarrow() -> None:
    program = (
        "import sys, topics.spark; print({'pyspark', 'pyarrow', 'httpcore2'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_formats_may_be_registered_again(spark: SparkSession) -> None:
    for _ in range(2):
        register(spark)
    with pytest.raises(Exception, match=r"topics\.spark\.source\.connection\.BadOption: "):
        spark.read.format("topics").option("colour", "red").load()
