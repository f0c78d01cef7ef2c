"""A job between files and topics: ``python -m workers.spark JOB ...``, as ``topics-spark``."""

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
