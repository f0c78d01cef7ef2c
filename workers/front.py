"""A front: speaks HTTP. The supervisor forks it; it does not start alone."""

from topics.process.front import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit("a front is forked by the supervisor: run ./supervisor.py")
