"""The rules of queues (§10): the states of jobs, leases and claims. They are pure."""
