"""The code in README.md about Spark does what the text says."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.test_readme_queue import blocks
from tests.support.api import Api, ok
from tests.support.server import Server
from topics.spark import register
from topics.spark.jobs.archive import ArchiveJob, archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
EXAMPLE, READERS = blocks("Spark")


def test_the_examples_run_one_after_the_other(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    register(spark)
    with Server(tmp_path / "data", shards=2) as server, Api(server.address) as api:
        url = f"http://{server.host}:{server.port}"
        # Spark's processes have the environment of the JVM, which other tests share.
        code = EXAMPLE.code.replace(
            '.format("topics")', f'.format("topics").option("url", "{url}")'
        )
        ok(api.append("orders", {"sku": "A1", "qty": 2}, {"sku": "B2"}), 201)
        for _ in range(2):  # the option jobId: the second run appends nothing
            # A write looks for the format in the session of its thread: let that be this one,
            # whatever other tests did there.
            spark.createDataFrame([(0,)], "a int")
            exec(code, {"spark": spark})
        records = ok(api.diff("skus", include_tags=True))["records"]
        found = {record["$tag"]: record["data"] for record in records}
        assert (len(records), sorted(found)) == (2, ["A1", "B2"])
        assert found["B2"]["offset"] == 2
        job = ArchiveJob(
            subscribe="orders", directory=str(tmp_path / "DIR"), options={"servers": url}
        )
        assert archive(spark, job).rows == 2
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(READERS.code.replace("DIR", str(tmp_path / "DIR")), {})
        assert capsys.readouterr().out.count("orders") == 2
