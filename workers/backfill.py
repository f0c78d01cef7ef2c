"""Files into a topic, as a job: ``python -m workers.backfill SOURCE TOPIC``."""

import sys

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["backfill", *sys.argv[1:]]))
