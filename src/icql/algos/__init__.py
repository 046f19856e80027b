"""Algorithms: one file each, one contract (see `base`)."""
