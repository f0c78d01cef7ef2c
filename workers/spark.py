"""Runs a Spark job: ``python -m workers.spark JOB ...``.

The command ``topics-spark`` does the same.
"""

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
