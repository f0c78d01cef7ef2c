"""A shard writer, which owns the topics of one shard. The supervisor forks it; it cannot be started
on its own.
"""

from topics.process.shard_writer import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit("a shard writer is forked by the supervisor: run ./supervisor.py")
