"""The last records of keys, as a job: ``python -m workers.compact SRC DEST``."""

import sys

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["compact", *sys.argv[1:]]))
