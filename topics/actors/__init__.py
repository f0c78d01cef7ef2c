"""Shared-memory links, calls between processes, and the shard loop. Contains no HTTP."""
