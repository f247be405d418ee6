"""A differentiable model of distributed transformer training: step time, memory, energy and cost as one pure function."""

__version__ = "0.1.0"
