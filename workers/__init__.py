"""Entry points: one thin file for each process, and one for Spark jobs; and what `deploy/cluster`
starts.
"""
