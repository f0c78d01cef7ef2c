"""``python -m topics.spark SOURCE TOPIC [options]``: see ``--help``."""

from topics.spark.main import main

if __name__ == "__main__":
    raise SystemExit(main())
