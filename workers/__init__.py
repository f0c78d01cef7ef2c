"""Entry points: one thin file for each process, and one for Spark jobs; and the servers that the
shows of ``deploy`` start.
"""
