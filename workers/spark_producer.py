"""The Spark producer, as a job: ``python -m workers.spark_producer SOURCE TOPIC``."""

from topics.spark.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
