"""Entry points: one thin file for each process, and one for Spark jobs; and two shows on real data,
flights_story and three_servers, with what they share.
"""
