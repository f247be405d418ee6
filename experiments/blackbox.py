"""Searches that know nothing but values: at random, by differential evolution (scipy), by CMA-ES
with margins (cmaes); on the unit cube.

They are the baselines of the studies of design; each gets the same number of evaluations, and says
how good its best was after each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Objective = Callable[[np.ndarray], np.ndarray]
"""Points of the unit cube `[n, dimension]` → values `[n]`, least is best, all finite."""


class _Spent(Exception):
    """The evaluations are used up."""


class Counter:
    """An objective that stops after a number of evaluations, and remembers the best value after
    each.

    Attributes:
      best: running minimum, one for each evaluation. at: the best point.
    """

    def __init__(self, objective: Objective, budget: int):
        self.objective, self.budget = objective, budget
        self.best: list[float] = []
        self.at: np.ndarray | None = None

    def __call__(self, points: np.ndarray) -> np.ndarray:
        points = np.atleast_2d(np.clip(points, 0.0, 1.0))[: self.budget - len(self.best)]
        if not len(points):
            raise _Spent
        values = self.objective(points)
        for point, value in zip(points, values, strict=True):
            if not self.best or value < self.best[-1]:
                self.at = point
            self.best.append(min(float(value), self.best[-1] if self.best else np.inf))
        return values


def at_random(objective: Counter, dimension: int, seed: int) -> None:
    """Independent uniform points."""
    random = np.random.default_rng(seed)
    while len(objective.best) < objective.budget:
        objective(random.uniform(size=(256, dimension)))


def differential_evolution(objective: Counter, dimension: int, seed: int) -> None:
    """Storn & Price 1997, as scipy has it: best1bin, 15 members for each dimension, a generation at
    once; started again when converged."""
    from scipy import optimize

    def generation(points: np.ndarray) -> np.ndarray:
        values = objective(points.T)
        if len(values) < points.shape[1]:
            raise _Spent
        return values

    bounds = [(0.0, 1.0)] * dimension
    try:
        while True:
            optimize.differential_evolution(
                generation,
                bounds,
                rng=seed,
                maxiter=10**6,
                tol=1e-8,
                polish=False,
                vectorized=True,
                updating="deferred",
            )
            seed += 1000
    except _Spent:
        return


def cma(objective: Counter, dimension: int, seed: int) -> None:
    """CMA-ES (Hansen 2016) with four members for each dimension, started again with twice as many
    when converged (Auger & Hansen 2005)."""
    from cmaes import CMA

    random, population = np.random.default_rng(seed), 4 * dimension
    bounds = np.tile([0.0, 1.0], (dimension, 1))
    try:
        while True:
            mean = random.uniform(0.2, 0.8, dimension)
            search = CMA(
                mean,
                0.3,
                bounds=bounds,
                seed=int(random.integers(2**31)),
                population_size=population,
            )
            while not search.should_stop() and search.generation < 400:
                points = [search.ask() for _ in range(search.population_size)]
                values = objective(np.array(points))
                if len(values) < len(points):
                    raise _Spent
                search.tell(list(zip(points, map(float, values), strict=True)))
            population *= 2
    except _Spent:
        return


METHODS: dict[str, Callable[[Counter, int, int], None]] = {
    "random": at_random,
    "differential evolution": differential_evolution,
    "CMA-ES": cma,
}


def run(method: str, objective: Objective, dimension: int, budget: int, seed: int) -> Counter:
    """Spend a budget of evaluations."""
    counter = Counter(objective, budget)
    METHODS[method](counter, dimension, seed)
    return counter


class Table:
    """A finite space as a unit cube: one coordinate for each column that varies, split evenly among
    the values that are left for it.

    Attributes:
      rows: `[n, column]`, sorted by columns. values: `[n]` of each row, least is best. dimension:
        columns that vary.
    """

    def __init__(self, rows: np.ndarray, values: np.ndarray):
        varies = [i for i in range(rows.shape[1]) if len(np.unique(rows[:, i])) > 1]
        order = np.lexsort(rows[:, varies][:, ::-1].T)
        self.rows, self.values = rows[order], values[order]
        self.columns = np.ascontiguousarray(self.rows[:, varies])
        self.dimension = len(varies)
        self._starts: dict[tuple[int, int, int], np.ndarray] = {}

    def row(self, point: np.ndarray) -> int:
        """Index of the row at a point: column after column, among the values that rows with the
        same choices before have."""
        low, high = 0, len(self.rows)
        for i, u in enumerate(point):
            starts = self._values_of(i, low, high)
            chosen = min(int(u * (len(starts) - 1)), len(starts) - 2)
            low, high = int(starts[chosen]), int(starts[chosen + 1])
        return low

    def _values_of(self, i: int, low: int, high: int) -> np.ndarray:
        """Where each value of a column begins among some rows, and where they end; found once, as
        searches come back to them."""
        key = (i, low, high)
        if key not in self._starts:
            column = self.columns[low:high, i]
            changes = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1], [True]]))
            self._starts[key] = low + changes
        return self._starts[key]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        return self.values[[self.row(point) for point in points]]
