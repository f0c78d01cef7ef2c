"""The specifications that the server publishes: their generators, and the checks of the server
against them.
"""
