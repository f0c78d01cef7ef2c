"""Windowed counts of a topic, as a job: ``python -m workers.aggregate SRC DEST CHECKPOINT ...``."""

import sys

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["aggregate", *sys.argv[1:]]))
