"""``python -m topics`` is the command ``topics``."""

from topics.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
