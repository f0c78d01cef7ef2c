"""Shared memory between two processes: rings, arenas, the board."""
