"""Runs are followed while their logs or tables grow: a level that leaves what such runs take, and
changes against a run's own earlier steps.

`changes` finds changes in a series of step times, `growing` reads what was added to files,
`runs` keeps one detector for each run in them, `level` compares with a profile.
"""
