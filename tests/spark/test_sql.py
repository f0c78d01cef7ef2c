"""Spark SQL over topics: views and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.api import Api
from tests.support.server import Server
from topics.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


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
