"""Fit the shipped profiles from the published table: `python -m calibration.ship`.

One pooled fit of every usable row gives `generic`. The others are the same fit seen from one
accelerator and family of stacks (`dmodel.profiles.views`): known groups predict the same, unknown
ones start from the family, not from the mean of all. `held-out` is the evidence: the same fit
without a fifth of the rows, by whole groups, on which `dmodel evaluate` shows it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from calibration.evaluate import fitted_rows
from calibration.fit import fit
from calibration.footprints import fit_footprints
from calibration.traces import Cases, published, split, to_cases
from dmodel.profiles import EVIDENCE, Profile, container, load, packing, save, views
from dmodel.profiles.shipped import PACKED
from dmodel.profiles.views import View, rebase
from dmodel.profiles.writing import of_footprints as told
from dmodel.types import enable_float64

HELD_OUT_SHARE = 0.2

POLISH = 600
"""Steps of L-BFGS in each round: after 120, enough for a dozen rows, the loss of all rows is still
27 above where 500 take it."""


VIEWS = (
    View(
        "a100-megatron",
        ("A100-80GB",),
        ("megatron-sc21-t1", "megatron-sc21-t2", "mt-nlg-530b", "vtrain"),
        "Megatron-LM and DeepSpeed, 3D-parallel, on A100",
    ),
    View(
        "h100-megatron",
        ("H100-80GB",),
        ("nemo-launcher", "megatron-bridge", "megatron-lm-llama"),
        "NeMo and Megatron-LM, 3D-parallel, on H100",
    ),
    View("a100-fsdp", ("A100-80GB", "A100-40GB"), ("llm-foundry",), "FSDP (LLM Foundry) on A100"),
    View("h100-fsdp", ("H100-80GB",), ("llm-foundry",), "FSDP (LLM Foundry) on H100"),
    View(
        "blackwell-megatron",
        ("B200", "GB200", "B300", "GB300"),
        ("megatron-bridge",),
        "Megatron-Bridge on B200, B300, GB200 and GB300",
    ),
    View(
        "tpu-v5",
        ("TPU-v5e", "TPU-v5p", "TPU-v4"),
        ("maxtext-readme",),
        "MaxText on TPU v5e, v5p and v4",
    ),
)


def fit_with_report(cases: Cases, **how: object) -> Profile:
    """A fit that says on stderr how far it is."""
    started = time.perf_counter()

    def report(done: float, loss: float) -> None:
        print(
            f"\r{100 * done:3.0f} %  loss {loss:.2f}  {time.perf_counter() - started:.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )

    fitted = fit(cases, progress=report, **how)  # type: ignore[arg-type]
    print(file=sys.stderr)
    return fitted


def build(cases: Cases, *, seed: int = 0, starts: int = 8) -> list[Profile]:
    """The pooled fit, its views, and the fit without the held-out groups. Descents end in many
    places, by which stack's hosts are slow: on 26 November 2026 the best of eight starts of the
    pooled fit lay 64 nats below the best of four."""
    pooled = fit_with_report(cases, seed=seed, starts=starts, polish=POLISH, name="generic")
    held_out = split(cases, HELD_OUT_SHARE, seed)
    evidence = fit_with_report(
        cases, seed=seed, starts=starts, polish=POLISH, name=EVIDENCE, held_out=held_out
    )
    return [pooled, *(rebase(pooled, view) for view in VIEWS), evidence]


def write(profiles: Sequence[Profile], folder: Path) -> list[Path]:
    """Write the pooled fit, which comes first, and what is told by it: views as what they are views
    of, the evidence with the rows that it has of it."""
    pooled, *others = profiles
    paths = [folder / f"{profile.name}{PACKED}" for profile in profiles]
    save(pooled, paths[0])
    base, by_name = load(paths[0]), {view.name: view for view in VIEWS}
    for profile, path in zip(others, paths[1:], strict=True):
        if profile.name in by_name:
            words, tables = views.pack(profile, base, by_name[profile.name])
            container.write(path, words, packing.as_arrays(tables))
        else:
            save(profile, path, beside=base)
    return paths


def refit_footprints(cases: Cases, folder: Path) -> list[Path]:
    """Fit what stacks hold in memory anew, in the files of a folder: footprints follow from peaks
    alone, so all else stays as it is. Views have those of the pooled fit; the evidence keeps to the
    rows that its coefficients were fitted to."""
    enable_float64()
    paths = [folder / f"{name}{PACKED}" for name in ("generic", EVIDENCE)]
    known = load(paths[1]).fitted_rows
    seen = (cases, cases.take(fitted_rows(cases, known)))
    for path, rows in zip(paths, seen, strict=True):
        content = path.read_bytes()
        words = container.words_of(str(path), content)
        document = words["document"] | {"footprints": told(fit_footprints(rows, {}))}
        container.write(
            path, words | {"document": document}, container.arrays_of(str(path), content)
        )
    return paths


def main(arguments: Sequence[str] = ()) -> None:
    """Write the profiles into the package, or into a folder given, which has to be there before
    minutes go by."""
    shipped = Path(str(resources.files("dmodel.profiles"))) / "data"
    parser = argparse.ArgumentParser(
        prog="python -m calibration.ship",
        description="Fit the shipped profiles anew, from embedded rows.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=shipped,
        help="where to write them (that of the package)",
    )
    parser.add_argument(
        "--footprints",
        action="store_true",
        help="fit footprints of memory alone, in seconds; all else stays as the files have it",
    )
    options = parser.parse_args(arguments)
    target = options.folder
    if not target.is_dir():
        parser.error(f"{target} is no folder; make it first")
    if options.footprints:
        for path in refit_footprints(to_cases(published()), target):
            print(f"{path}: footprints")
        return
    profiles = build(to_cases(published()))
    for profile, path in zip(profiles, write(profiles, target), strict=True):
        print(f"{path}: {profile.description}")


if __name__ == "__main__":
    main(sys.argv[1:])
