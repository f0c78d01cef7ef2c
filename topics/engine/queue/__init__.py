"""The rules of queues (§10): the states of jobs, leases and claims. They perform no I/O and read no
clock.
"""
