"""The code in README.md about Spark does what the text says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.test_readme import blocks
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
        code = EXAMPLE.code.replace("http://127.0.0.1:4000", url)
        code = re.sub(
            r'(read\w*)\.format\("topics"\)', rf'\1.format("topics").option("url", "{url}")', code
        )
        ok(api.append("orders", {"sku": "A1", "qty": 2}, {"sku": "B2"}), 201)
        for _ in range(2):  # the option jobId: the second run appends nothing
            # A write looks for the format in the session of its thread: let that be this one,
            # whatever other tests did there.
            spark.createDataFrame([(0,)], "a int")
            names: dict[str, Any] = {"spark": spark}
            exec(code, names)
        assert [*map(tuple, names["typed"].collect())] == [("A1", 2), ("B2", None)]
        row = names["found"].orderBy("offset").first()
        assert (row.offset, row.data.sku, row.data.qty) == (1, "A1", 2)
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


def test_sql_names_the_server_of_a_table_in_each_statement(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    with Server(tmp_path / "data", shards=1) as server, Api(server.address) as api:
        given = f"servers = 'http://{server.host}:{server.port}', topic = 'sql'"
        view = given.replace(" =", "")
        spark.sql(f"CREATE TEMPORARY VIEW sql_view USING topics OPTIONS ({view})")
        spark.sql("CREATE TABLE sql_table (value STRING) USING topics")
        try:
            spark.sql("INSERT INTO sql_table WITH (" + given + ") SELECT '1' AS value")
            with pytest.raises(Exception, match="INSERT INTO table WITH"):
                spark.sql("INSERT INTO sql_table SELECT '2' AS value")
            found = spark.sql(f"SELECT value FROM sql_table WITH ({given})").collect()
            assert [row["value"] for row in found] == ["1"]
            assert [row["value"] for row in spark.table("sql_view").collect()] == ["1"]
        finally:
            spark.sql("DROP TABLE sql_table")
            spark.sql("DROP VIEW sql_view")
        assert [record["data"] for record in api.read("sql")] == [1]
