"""Partial pooling: which coefficients a row shares with which others, and how far they may differ.

A row's coefficients, in the unconstrained space, are the center plus one offset from each of its
groups (`dmodel.profiles.groupings`): chips move what belongs to hardware, stacks what belongs to
software, a stack on a generation of chips all that happens on these, on one of them everything a
little. Everything is fitted in units of its prior standard deviation, so one step size suits all
directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calibration.micro.priors import priors
from calibration.widths import HARDWARE, SCOPES, fresh_widths, known_factor
from dmodel import struct
from dmodel.coefficients import SPECS, default, to_unconstrained
from dmodel.errors import InputError
from dmodel.profiles import GROUPINGS, Profile, family, members
from dmodel.types import Array

SOFTWARE_GROUPINGS, NEW_INFLATION = ("lineage", "stack"), 1.5
"""Groupings of software, and how many of its widths software that the base does not know may move:
widths learned from a dozen stacks are themselves unsure, and fits of twelve rows of left-out stacks
were off by more at 0.7 of them (and less) than at 1, and by least near 1.5. Chips, variants, ports
and pairs, of which there are more, move by what was learned."""

NOISE, NOISE_WIDTH = 0.03, 0.5
"""Prior of the Student-t scale of ln(predicted / measured) of a stack: median, and standard
deviation of its logarithm. Releases of one published table that repeat a configuration differ by 4
% in the median."""

NOISE_FLOOR = 0.005
"""What that scale is never below in a fit from a base. A dozen rows are fewer than the coefficients
that may move: what they scatter by can be fitted away, and the less is left the more a coefficient
that they do not determine may go astray for it. One in 30 draws of twelve rows of vTrain on one
node, all of which wait for their host, was off by 57 % for 0.2 % of scatter, 24 with the floor; the
geometric mean over fifteen targets stays (3.92 / 6.49 to 3.93 / 6.49 %, 30 draws). At 1 % medians
rise."""


class Groups(NamedTuple):
    """Groups of some rows: `members[of[g, i]]` is the member `(grouping, name)` of row i in
    grouping g; the first member is nobody.
    stacks: by name, and the stack of every row."""

    members: tuple[tuple[str, str], ...]
    of: np.ndarray
    stacks: tuple[str, ...]
    stack_of: np.ndarray
    accelerators: tuple[str, ...]


def groups_of(accelerators: Sequence[str], stacks: Sequence[str]) -> Groups:
    """Index the rows by their groups."""
    found = list(map(members, accelerators, stacks))
    of = {g: [row[g] for row in found] for g in GROUPINGS}
    at = {("", ""): 0}
    for name in sorted((g, name) for g, column in of.items() for name in set(column) - {""}):
        at[name] = len(at)
    unique, stack_of = np.unique(np.asarray(stacks, str), return_inverse=True)
    return Groups(
        members=tuple(at),
        of=np.array([[at.get((g, name), 0) for name in column] for g, column in of.items()]),
        stacks=tuple(map(str, unique)),
        stack_of=stack_of.reshape(-1),
        accelerators=tuple(sorted(set(map(str, accelerators)))),
    )


class Mixing(struct.PyTreeNode, kw_only=True):
    """What is known of sums of center and offsets: Cholesky factors of the covariance between them,
    in units of their own prior.

    Attributes:
      coefficients: those of which something is known `[K]`; members: the center, 0, and those in
        such sums, 1 + m `[N]`. root: by coefficient `[K, N, N]`; all other center and offsets are
        independent, with factor 1.
    """

    coefficients: np.ndarray
    members: np.ndarray
    root: np.ndarray

    @property
    def at(self) -> tuple[np.ndarray, ...]:
        """Index of the mixed entries of `[1 + M, C]`."""
        return np.ix_(self.members, self.coefficients)


class Prior(struct.PyTreeNode, kw_only=True):
    """Means, and standard deviations (0 freezes a direction): center `[C]`; of each member's offset
    the Cholesky factor of its covariance, `[M, C, C]`. noise: median of the part of the Student-t
    scale above its floor, by stack `[S]`. mixing: where something is known of sums of center and
    offsets (`anchored`); None where nothing is. fresh: of a fit from nothing (static)."""

    center: np.ndarray
    center_width: np.ndarray
    offset: np.ndarray
    factor: np.ndarray
    noise: np.ndarray
    mixing: Mixing | None = None
    fresh: bool = struct.field(pytree_node=False, default=False)

    @property
    def noise_floor(self) -> float:
        """What the Student-t scale of any stack is never below [1]: `NOISE_FLOOR`, 0 in a fit from
        nothing."""
        return 0.0 if self.fresh else NOISE_FLOOR


class Parameters(struct.PyTreeNode, kw_only=True):
    """What is fitted, in prior standard deviations from the prior mean: center `[C]`, offsets `[M,
    C]`, noise `[S]`."""

    center: np.ndarray
    offset: np.ndarray
    noise: np.ndarray


def prior_for(
    groups: Groups,
    base: Profile,
    fresh: bool,
    told: frozenset[str] = frozenset(),
    drift: float = 0.0,
) -> Prior:
    """The prior of a fit.

    A member that the base knows stays, but a known stack moves by what is still open about it
    (`stack_covariances`, `KNOWN_INFLATION` standard errors, no further than members of all
    groupings differ), or as a new one where nothing is said of that or its rows are told again, its
    variants, ports and pairs too. A new member moves by the width among the members of its
    grouping, and the center by its standard errors. What micro-benchmarks say of a new accelerator
    is its mean and width, or, in a fit from nothing, holds for what it has together with its
    generation and the center (`anchored`).

    Args:
      base: profile to start from: its center, the offsets it knows and its widths.
      fresh: the base is only the prior of a fit from nothing, in which everything moves freely.
      told: families of stacks whose rows are fitted again (`calibration.replay`): these move as new
        ones, from where the base has them.
      drift: standard deviation by which coefficients of known stacks may have changed since the
        base was fitted, of their logarithm or log odds.
    """
    n, start_from = len(base.center), _Base(base, fresh, told, drift)
    offset, factor = np.zeros((len(groups.members), n)), np.zeros((len(groups.members), n, n))
    for i, (grouping, name) in enumerate(groups.members[1:], 1):
        offset[i], factor[i] = start_from.member(grouping, name)
    stranger = not all(family(s) in base.stack_covariances for s in groups.stacks)
    prior = Prior(
        center=base.center,
        center_width=base.standard_errors * (fresh or stranger),
        offset=offset,
        factor=factor,
        noise=np.array([start_from.noise(s) for s in groups.stacks]),
        fresh=fresh,
    )
    return anchored(prior, groups) if fresh else prior


class _Base(NamedTuple):
    """What the members of a fit start from; see `prior_for`."""

    profile: Profile
    fresh: bool
    told: frozenset[str]
    drift: float

    def member(self, grouping: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean of a member's offset `[C]`, and the factor of its covariance `[C, C]`."""
        base = self.profile
        known, again = base.offsets[grouping].get(name), _software(grouping, name) in self.told
        offset = np.zeros(len(base.center)) if known is None else np.array(known, float)
        if grouping == "stack":
            if name in base.stack_covariances and not again:
                known = base.stack_covariances[name]
                return offset, known_factor(known, self._strangers(), self.drift)
        elif known is not None and not again:
            return offset, np.zeros((len(offset), len(offset)))
        width = self._width(grouping)
        if grouping == "accelerator":
            self._measure(name, offset, width)
        return offset, np.diag(width)

    def noise(self, stack: str) -> float:
        """Median of the part of a stack's noise above the floor."""
        if self.fresh or family(stack) in self.told:
            return NOISE
        return _above_floor(self.profile.noise.get(stack, NOISE))

    def _widths(self) -> dict[str, np.ndarray]:
        """Widths among the members of each grouping, of what it moves."""
        widths = self.profile.widths or fresh_widths()
        return {g: widths[g] * SCOPES[g] for g in GROUPINGS}

    def _strangers(self) -> np.ndarray:
        """Variances of what is known of no grouping `[C]`."""
        zero = np.zeros(len(self.profile.center))
        return sum((width**2 for width in self._widths().values()), start=zero)

    def _width(self, grouping: str) -> np.ndarray:
        wider = grouping in SOFTWARE_GROUPINGS and not self.fresh
        return self._widths()[grouping] * (NEW_INFLATION if wider else 1.0)

    def _measure(self, accelerator: str, offset: np.ndarray, width: np.ndarray) -> None:
        """Put in what micro-benchmarks say of an accelerator; `anchored` does of what a fit from
        nothing may share out."""
        for c, (mean, sd) in _measured(accelerator).items():
            if not (self.fresh and TOTALS[c]):
                offset[c], width[c] = mean - self.profile.unconstrained(accelerator)[c], sd


def _above_floor(scale: float) -> float:
    """The part of a base's noise scale above the floor of a fit from it, so that a second fit does
    not add the floor to the first one's;
    a tenth of the floor at least, as its logarithm is what moves."""
    return float(np.sqrt(max(scale**2 - NOISE_FLOOR**2, (0.1 * NOISE_FLOOR) ** 2)))


def _software(grouping: str, member: str) -> str:
    """The family of stacks that a member belongs to alone; "" for chips and lineages."""
    after = family(member.partition(" ")[2])
    return {"stack": member, "variant": family(member), "port": after, "pair": after}.get(
        grouping, ""
    )


TOTALS = np.array([not name.startswith("net_") for name in SPECS])
"""Coefficients that micro-benchmarks measure as a step has them. Of the network a single call tells
how chips differ, not what messages of a step meet: fitted steps see hops and shares of bandwidth up
to six standard errors from those of calls, on every chip alike."""


def _widths(prior: Prior) -> np.ndarray:
    """Standard deviations of center and members, where these are independent from coefficient to
    coefficient, `[1 + M, C]`."""
    return np.vstack([prior.center_width, np.diagonal(np.asarray(prior.factor), axis1=1, axis2=2)])


def anchored(prior: Prior, groups: Groups) -> Prior:
    """The prior given what micro-benchmarks say of accelerators: of each measured coefficient,
    N(mean, sd) for the sum of the center, the generation's offset and the accelerator's.

    In units of the prior, x, with D their widths and e the members of a sum: `Λ = 1 + Σ D e eᵀ D /
    sd²`, mean
    `Λ⁻¹ Σ D e (mean − sum of prior means) / sd²`, covariance Λ⁻¹. With the offset alone held to the
    measurement the center is free to carry all accelerators away from theirs.
    """
    center, offset = np.array(prior.center), np.array(prior.offset)
    widths, sums = _widths(prior), _sums(groups)
    if not sums:
        return prior
    coefficients = np.unique([c for s in sums for c in s.measured])
    those = np.unique(np.concatenate([s.members for s in sums]))
    precision = np.tile(np.eye(len(those)), (len(coefficients), 1, 1))
    pull = np.zeros((len(coefficients), len(those)))
    for at, measured in sums:
        for c, (mean, sd) in measured.items():
            k = np.searchsorted(coefficients, c)
            moved = np.where(np.isin(those, at), widths[those, c], 0.0)
            precision[k] += np.outer(moved, moved) / sd**2
            pull[k] += moved * (mean - center[c] - offset[at[1:] - 1, c].sum()) / sd**2
    covariance = np.linalg.inv(precision)
    shift, place = np.zeros(widths.shape), np.ix_(those, coefficients)
    shift[place] = widths[place] * np.einsum("kmn,kn->mk", covariance, pull)
    mixing = Mixing(coefficients=coefficients, members=those, root=np.linalg.cholesky(covariance))
    return prior.replace(center=center + shift[0], offset=offset + shift[1:], mixing=mixing)


class _Sum(NamedTuple):
    """What is measured of a sum. members: the center, 0, and members of groupings, 1 + m; measured:
    mean and standard deviation by coefficient."""

    members: np.ndarray
    measured: dict[int, tuple[float, float]]


def _sums(groups: Groups) -> list[_Sum]:
    """Of each accelerator of which something is measured that a step has as well: the center, its
    generation and itself."""
    generations, accelerators = (
        groups.of[GROUPINGS.index(name)] for name in ("generation", "accelerator")
    )
    found = []
    for i in np.unique(accelerators).tolist():
        measured = {c: m for c, m in _measured(groups.members[i][1]).items() if TOTALS[c]}
        generation = int(generations[accelerators == i][0])
        if measured:
            shared = [0, 1 + generation] if generation else [0]
            found.append(_Sum(np.unique([*shared, 1 + i]), measured))
    return found


def holding(prior: Prior, held: Mapping[str, float]) -> Prior:
    """The prior with some coefficients held at a value for every row, by name: what a mechanism
    buys shows without it.

    Raises:
      InputError: no coefficient of that name.
    """
    if unknown := [name for name in held if name not in SPECS]:
        raise InputError(f"no coefficient {', '.join(unknown)}; there are: {', '.join(SPECS)}")
    value = np.asarray(to_unconstrained(default().replace(**held)))
    at = [list(SPECS).index(name) for name in held]
    center, width, offset, factor = (
        np.array(x) for x in (prior.center, prior.center_width, prior.offset, prior.factor)
    )
    center[at], width[at], offset[:, at], factor[:, at] = value[at], 0.0, 0.0, 0.0
    return prior.replace(center=center, center_width=width, offset=offset, factor=factor)


def _measured(accelerator: str) -> dict[int, tuple[float, float]]:
    """Mean and standard deviation by coefficient, from micro-benchmarks of an accelerator."""
    try:
        found = priors(accelerator)
    except InputError:
        return {}
    at = {name: i for i, name in enumerate(SPECS)}
    return {at[name]: prior for name, prior in found.items() if HARDWARE[at[name]]}


def start(prior: Prior) -> Parameters:
    """The prior mean as parameters."""
    return Parameters(
        center=np.zeros_like(prior.center, float),
        offset=np.zeros_like(prior.offset, float),
        noise=np.zeros_like(prior.noise, float),
    )


def located(prior: Prior, center: Array, offsets: Array, noise: Array) -> Parameters:
    """Parameters at a center `[C]`, offsets `[M, C]` and noise scales `[S]` of a fit from nothing;
    directions that are frozen stay at 0.

    The inverse of `center`, `offsets` and `noise_scale`, where members' factors are diagonal and
    noise has no floor.
    """
    widths = _widths(prior)
    away = np.vstack(
        [
            np.asarray(center) - np.asarray(prior.center),
            np.asarray(offsets) - np.asarray(prior.offset),
        ]
    )
    units = np.divide(away, widths, out=np.zeros_like(away), where=widths > 0.0)
    if prior.mixing is not None:
        at = np.ix_(np.asarray(prior.mixing.members), np.asarray(prior.mixing.coefficients))
        units[at] = np.linalg.solve(np.asarray(prior.mixing.root), units[at].T[:, :, None])[
            :, :, 0
        ].T
    return Parameters(
        center=units[0],
        offset=units[1:],
        noise=np.log(np.asarray(noise) / np.asarray(prior.noise)) / NOISE_WIDTH,
    )


def mixed(p: Parameters, prior: Prior) -> tuple[np.ndarray, np.ndarray]:
    """Center `[C]` and offsets `[M, C]` in units of their own prior, where parameters are in those
    of what is known of both together."""
    if prior.mixing is None:
        return p.center, p.offset
    found = np.vstack([p.center[None], p.offset])
    found[prior.mixing.at] = np.einsum("kmn,nk->mk", prior.mixing.root, found[prior.mixing.at])
    return found[0], found[1:]


def offsets(p: Parameters, prior: Prior) -> np.ndarray:
    """Offset of every member in the unconstrained space, `[M, C]`."""
    return prior.offset + (prior.factor @ mixed(p, prior)[1][:, :, None])[:, :, 0]


def center(p: Parameters, prior: Prior) -> np.ndarray:
    """The center in the unconstrained space, `[C]`."""
    return prior.center + prior.center_width * mixed(p, prior)[0]


def rows_of(p: Parameters, prior: Prior, of: np.ndarray) -> np.ndarray:
    """Unconstrained coefficients of every row, `[C, row]`, from its members `[G, row]`."""
    return center(p, prior)[:, None] + offsets(p, prior)[of].sum(0).T


def row_scale(scale: np.ndarray, stack_of: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Student-t scale of every row `[…, row]`: of its stack `[…, S]`, and what its own measurements
    leave open (`ratios.Data.variance`)."""
    each = scale[..., stack_of]
    return np.sqrt(each**2 + variance) if np.any(variance) else each


def noise_scale(p: Parameters, prior: Prior) -> np.ndarray:
    """Student-t scale of ln(predicted / measured) by stack, `[S]`: `√(floor² + (median · exp(width
    · η))²)`."""
    return np.sqrt(prior.noise_floor**2 + (prior.noise * np.exp(NOISE_WIDTH * p.noise)) ** 2)
