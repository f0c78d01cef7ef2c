"""Live delivery: watch streams, work streams and WebSockets, with their feeds, pages and
sessions.
"""
