"""An archive back into topics, as a job: ``python -m workers.replay DIR TOPIC``."""

import sys

from topics.spark.jobs.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["replay", *sys.argv[1:]]))
