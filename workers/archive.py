"""A topic into files by date, as a job: ``python -m workers.archive TOPIC DIR``."""

import sys

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["archive", *sys.argv[1:]]))
