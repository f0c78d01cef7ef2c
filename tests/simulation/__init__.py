"""The whole server in one seeded world: one process, one thread; time, disk, links and deaths come
from a seed. And the judge of what its clients, or those of a real server, have asked and heard.
"""
