"""Everything a user can set, without JAX: what each setting may be, how settings change.

`fields` says what a field may hold, `change` reads, overrides and reads back settings,
`grid` varies them, `run` is of the run, and the rest are those of data, contexts and algorithms.
"""
