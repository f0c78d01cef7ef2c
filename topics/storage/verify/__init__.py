"""Verification: what is wrong in the files of a data directory that no server has."""
