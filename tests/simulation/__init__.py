"""Deterministic simulation of the complete server: one process and one thread, in which time, disk,
links and crashes are derived from a seed. The judge checks the history of the clients, also for
clients of a real server.
"""
