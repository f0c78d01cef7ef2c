"""The specifications that the server gives out: how they are made, and what holds the server to
them.
"""
