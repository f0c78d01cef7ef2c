"""Entry points: one thin file for each process, and for each job that a user starts."""
