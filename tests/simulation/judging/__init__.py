"""The checks of the judge, by subject."""
