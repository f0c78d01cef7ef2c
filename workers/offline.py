"""A data directory to Parquet, as a job: ``python -m workers.offline DATA_DIR TOPIC OUT``."""

import sys

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["offline", *sys.argv[1:]]))
