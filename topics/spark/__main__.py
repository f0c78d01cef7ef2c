"""``python -m topics.spark SOURCE TOPIC [options]``: see ``--help``."""

import sys

from topics.errors import ExitCode

try:
    from topics.spark.main import main
except ModuleNotFoundError as missing:
    sys.stderr.write(f"error: {missing.name} is not installed: pip install 'topics[spark]'\n")
    raise SystemExit(ExitCode.FAILED) from None
except KeyboardInterrupt:
    raise SystemExit(ExitCode.INTERRUPTED) from None

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
