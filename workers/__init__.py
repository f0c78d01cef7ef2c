"""Entry points: one short file for each kind of process, and one for Spark jobs."""
