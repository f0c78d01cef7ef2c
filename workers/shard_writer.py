"""A shard writer: owns one shard's topics. The supervisor forks it; it does not start alone."""

from topics.process.shard_writer import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit("a shard writer is forked by the supervisor: run ./supervisor.py")
