"""The whole server in one seeded world: one process, one thread, time, disk, links and deaths from a
seed; and the judge of what its clients, or those of a real server, have asked and heard.
"""
