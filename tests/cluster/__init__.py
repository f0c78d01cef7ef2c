"""A Spark cluster and servers on this machine, for ``deploy/cluster``, tests, and the proofs of
``tests/bench``.
"""
