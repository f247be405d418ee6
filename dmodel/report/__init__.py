"""Figures and one self-contained HTML page from plain data; with `cli`, the only place that prints
or plots."""
