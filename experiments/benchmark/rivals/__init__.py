"""Adapters of other tools, a file each, run by the tool's own interpreter; they need Python alone.

`python -m experiments.benchmark.rivals.NAME --rows FILE --out FILE [--checkout DIR]
[--constants X …]`.
"""
