"""Is a log what it claims to be? Every known defect, with its row, before anything is trained.

Errors are defects that make the data unusable or wrong beyond doubt; warnings are what only the
owner of the log can judge, with the consequence of leaving it. Data without errors loads.
"""
