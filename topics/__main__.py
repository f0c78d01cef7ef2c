"""Runs the command ``topics`` as ``python -m topics``."""

from topics.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
