"""The best plan for a system, a model and a batch: exact search, gradient search, rounding, and the certificate that compares them."""

from dmodel.design.make import make_plan
from dmodel.design.optimum import Binding, Design, design
from dmodel.design.search import Candidate
from dmodel.design.space import Choices

__all__ = ["Binding", "Candidate", "Choices", "Design", "design", "make_plan"]
