"""One file for each process: read the settings, build, run."""
