"""``python -m topics.spark SOURCE TOPIC [options]``: see ``--help``."""

import sys

from topics.errors import ExitCode

try:
    from topics.spark.main import main
except ModuleNotFoundError as missing:
    cure = "pip install 'topics-engine[spark]'"
    sys.stderr.write(f"error: {missing.name} is not installed: {cure}\n")
    raise SystemExit(ExitCode.FAILED) from None
except KeyboardInterrupt:
    raise SystemExit(ExitCode.INTERRUPTED) from None

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
