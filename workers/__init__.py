"""Entry points: one thin file for each process, and one for Spark jobs."""
