"""Queues: the states of jobs, leases and claims (§10), pure."""
