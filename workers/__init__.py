"""Entry points: one thin file for each process, and for each job that a user starts; and two shows
on real data, flights_story and three_servers, with what they share.
"""
