"""What logged data can be read from and written to: one file each, listed in `icql.data.datasets`.

A reader takes a path, the task where it is known, and the room for its arrays, and gives a
`Source`; a writer takes a path and a `Source`, and writes all or nothing. A `UserError` names file,
array or column, and row, where data is missing, damaged, of the wrong kind or shape, or too large
for the room, and where a format cannot hold a log.
"""
