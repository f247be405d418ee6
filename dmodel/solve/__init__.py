"""The value of one input at which an output of a plan is as wanted: all of them in a range, or why
there is none.

Numbers that may take any value are solved for by Newton's method on the exact derivative, kept
inside of brackets; degrees and devices, which are whole, are tried one by one.
"""

from dmodel.solve.answer import Solution
from dmodel.solve.solving import solve

__all__ = ["Solution", "solve"]
