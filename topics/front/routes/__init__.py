"""The table of the HTTP surface and what each row does."""
