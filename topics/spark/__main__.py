"""``python -m topics.spark SOURCE TOPIC [options]``: see ``--help``."""

import sys

try:
    from topics.spark.main import main
except ModuleNotFoundError as missing:
    sys.stderr.write(f"error: {missing.name} is not installed: pip install 'topics[spark]'\n")
    raise SystemExit(1) from None

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
