"""The front, which serves HTTP. The supervisor forks it; it cannot be started on its own."""

from topics.process.front import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit("a front is forked by the supervisor: run ./supervisor.py")
