"""Laplace's approximation against the exact posterior.

Claims: the Laplace approximation is as wide as the exact posterior: standard deviations of
predictions within 20 % of those by NUTS; rows are predicted no better by the mean of the posterior
than by the optimum.

A dozen rows of a stack that the base has not seen are fitted; what their coefficients leave open of
the stack's other rows is told by the profile (Laplace), by draws of the exact posterior (NUTS) and
by fits of rows weighted at random (bootstrap). NUTS needs blackjax
(`pip install dmodel-jax[sampling]`). `python -m experiments.uncertainty_nuts [--targets …]
[--draws N] [--seeds N] [--traces FILE…]`
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibration.fit import fit
from calibration.predict import predict
from calibration.traces import Cases
from calibration.uncertainty.bootstrap import bootstrap
from calibration.uncertainty.nuts import sample
from calibration.uncertainty.posterior import Posterior, approximation, posterior
from dmodel.coefficients import from_unconstrained
from dmodel.errors import InputError
from dmodel.profiles import Profile
from dmodel.step import step_time
from dmodel.sweep import quick_to_compile
from experiments.bases import Bases
from experiments.divisions import shipped
from experiments.study import arguments, deliver, rows, run, say, summary
from experiments.targets import catalog, few_shot_targets

NEEDS = "blackjax: pip install 'dmodel-jax[sampling]'"

TARGETS = ("vtrain-multi", "llm-foundry", "nemo-launcher", "maxtext", "ultrascale")
"""Targets when none are named; those without rows are left out."""


def predictions(found: Posterior, cases: Cases, u: np.ndarray) -> np.ndarray:
    """ln t of rows under every draw of directions `[draw, row]`."""
    cell = {name: i for i, name in enumerate(found.names)}
    of = jnp.array(
        [
            cell[pair]
            for pair in zip(
                cases.labels.accelerator.tolist(), cases.labels.stack.tolist(), strict=True
            )
        ]
    )

    def log_times(one: jax.Array) -> jax.Array:
        z = found.coefficients(one)[of].T
        return jnp.log(
            step_time(cases.system, cases.model, cases.plan, from_unconstrained(z)).total
        )

    return np.asarray(
        jax.jit(lambda many: jax.lax.map(log_times, many), compiler_options=quick_to_compile())(
            jnp.asarray(u)
        )
    )


def effective(values: np.ndarray) -> float:
    """Number of independent draws that a chain `[draw, row]` is worth, in the middle of the rows:
    by the variance of means of batches."""
    batches = int(np.sqrt(len(values)))
    means = np.array([part.mean(0) for part in np.array_split(values, batches)])
    return float(
        np.median(
            np.minimum(
                values.var(0) / np.maximum(means.var(0, ddof=1), 1e-30) * batches, len(values)
            )
        )
    )


def compare(fitted: Cases, others: Cases, base: Profile, seed: int, draws: int) -> dict[str, Any]:
    """One line: sd of ln t by Laplace and by bootstrap over that by NUTS, in the middle and at the
    tenths of the rows; and what the fit and the posterior's mean of ln t miss by."""
    started = time.perf_counter()
    profile, found = fit(fitted, base, seed=seed, starts=4), posterior(fitted, base)
    same = {*found.names}
    known = [
        pair in same
        for pair in zip(
            others.labels.accelerator.tolist(), others.labels.stack.tolist(), strict=True
        )
    ]
    others = others.take(np.flatnonzero(known))
    start = approximation(found, profile)
    chain = sample(found, start, draws=draws, warmup=max(draws // 3, 50), seed=seed)
    exact = predictions(found, others, chain.x[:, : found.size])
    noise = np.array([profile.noise[s] for s in fitted.labels.stack.tolist()])
    again = bootstrap(
        found,
        start.mean[: found.size],
        np.maximum(noise, 0.03),
        fitted.labels.group.astype(str),
        seed=seed,
    )
    by_fits = predictions(found, others, again).std(0) / exact.std(0)
    told = predict(others, profile)
    ratio = told.parameter_sd / exact.std(0)
    return {
        "rows": len(others),
        **_errors("fit", told.step_time_s, others),
        **_errors("nuts", np.exp(exact.mean(0)), others),
        "directions": found.size,
        "nuts_sd": 100.0 * float(np.median(exact.std(0))),
        "laplace_over_nuts": float(np.median(ratio)),
        "tenth": float(np.quantile(ratio, 0.1)),
        "ninth_tenth": float(np.quantile(ratio, 0.9)),
        "within_20": 100.0 * float((np.abs(ratio - 1.0) <= 0.2).mean()),
        "bootstrap_over_nuts": float(np.median(by_fits)),
        "effective_draws": effective(exact),
        "divergent": chain.divergent,
        "seconds": time.perf_counter() - started,
        "_points": np.stack([exact.std(0), told.parameter_sd]),
    }


def _errors(by: str, predicted: np.ndarray, cases: Cases) -> dict[str, float]:
    """Median and mean of |predicted / measured − 1| [%]."""
    found = summary(np.abs(predicted / cases.labels.step_time_s - 1.0))
    return {f"{by}_{name}": found[name] for name in ("median", "mean")}


def every(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Lines of all targets and draws, and the standard deviations of their rows by target."""
    cases = rows(options.traces)
    protocols, bases = catalog(cases), Bases.of(options)
    names = few_shot_targets(protocols, options.targets, TARGETS)
    lines: list[dict[str, Any]] = []
    points: dict[str, list[np.ndarray]] = {}
    for name in names[: 1 if options.quick else None]:
        protocol = protocols[f"few-shot 12 {name}"]
        base = bases.without(cases, protocol.hidden(cases) | ~shipped(cases), name)
        for seed in range(options.seeds):
            (part,) = protocol.divide(cases, protocol.target(cases), seed)
            fitted, others = cases.take(part.fitted), cases.take(part.judged)
            found = compare(fitted, others, base, seed, 60 if options.quick else options.draws)
            points.setdefault(name, []).append(found.pop("_points"))
            lines.append({"target": name, "seed": seed, **found})
            say(sentence(lines[-1]))
    return lines, {name: np.concatenate(each, 1) for name, each in points.items()}


def sentence(line: dict[str, Any]) -> str:
    """A line in words, for the progress on standard error."""
    return (
        f"{line['target']} {line['seed']}: Laplace over NUTS {line['laplace_over_nuts']:.2f}, "
        f"{line['within_20']:.0f} % of {line['rows']} rows within 20 %; errors "
        f"{line['fit_median']:.1f} / {line['fit_mean']:.1f} by the fit, "
        f"{line['nuts_median']:.1f} / {line['nuts_mean']:.1f} % by the mean of its posterior"
    )


def main() -> None:
    """Every target, then the table and the figure."""
    options = _options()
    if find_spec("blackjax") is None:
        raise InputError(f"this study needs {NEEDS}")
    lines, points = every(options)
    deliver("uncertainty_nuts", lines, _figure(points), options)


def _figure(points: dict[str, np.ndarray]) -> Any:
    """Standard deviation by Laplace against that by NUTS, with the band of 20 %."""
    from dmodel.report.style import (
        BLUE,
        GREEN,
        GREY,
        ORANGE,
        PALE,
        PURPLE,
        VERMILLION,
        new_figure,
    )

    figure = new_figure(5.2, 4.6)
    axes = figure.subplots()
    every = 100.0 * np.concatenate(list(points.values()), 1)
    ends = np.array([every.min() / 1.2, every.max() * 1.2])
    axes.fill_between(ends, 0.8 * ends, 1.2 * ends, color=PALE, lw=0, label="± 20 %")
    axes.plot(ends, ends, color=GREY, lw=0.8)
    for (name, (exact, approximate)), colour in zip(
        points.items(), (BLUE, ORANGE, GREEN, VERMILLION, PURPLE), strict=False
    ):
        axes.plot(100.0 * exact, 100.0 * approximate, "o", ms=4, color=colour, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        title="Spread of predictions by the coefficients [%]",
    )
    axes.set(xlabel="standard deviation by NUTS [%]", ylabel="by Laplace [%]")
    ticks = [tick for tick in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if ends[0] <= tick <= ends[1]]
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        set_ticks([], minor=True)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _options() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--targets", nargs="*", help=f"default: {', '.join(TARGETS)}, where there are rows"
    )
    parser.add_argument("--draws", type=int, default=500, help="of the exact posterior")
    parser.set_defaults(seeds=1)
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
