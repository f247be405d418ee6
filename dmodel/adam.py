"""Adam by numpy."""

from __future__ import annotations

import numpy as np

FIRST, SECOND = 0.9, 0.999
"""Decay of the means of slopes and of their squares."""


class Adam:
    """Adam (Kingma & Ba 2015) on arrays of numpy; that of a library would be compiled.

    Args:
      shape: of the unknowns.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.square, self.count = np.zeros(shape), np.zeros(shape), 0

    def step(self, slopes: np.ndarray) -> np.ndarray:
        """The direction to go, about 1 in size."""
        self.count += 1
        self.mean = FIRST * self.mean + (1.0 - FIRST) * slopes
        self.square = SECOND * self.square + (1.0 - SECOND) * slopes**2
        mean = self.mean / (1.0 - FIRST**self.count)
        return mean / (np.sqrt(self.square / (1.0 - SECOND**self.count)) + 1e-8)


def annealed(rate: float, done: int, total: int) -> float:
    """A rate that falls as a cosine to a twentieth, so that the last steps settle."""
    return rate * (0.05 + 0.475 * (1.0 + np.cos(np.pi * done / total)))
