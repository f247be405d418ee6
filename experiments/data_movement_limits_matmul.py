"""Time of a product against size, theory and measured.

Claim: a matrix product on an A100 takes 4.5 µs while small, then grows with its traffic, then
with the cube of its size.

The theory's time of square products against size, beside measured products of an A100-80GB (the
shipped micro-benchmarks, 16 bit). The theory's A100 has 40 GB and 1,555 GB/s; measured products are
compared with it at the 2,039 GB/s of the card that was measured.
`python -m experiments.data_movement_limits_matmul [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibration.micro import published
from dmodel import catalog
from dmodel.report import style
from dmodel.theory import gpu, matmul_time
from dmodel.theory.gpus import Gpu
from experiments import data_movement as shared
from experiments.data_movement import compared
from experiments.study import options
from experiments.study import run as run_study

CHIP = "A100-80GB"
PUBLISHED_LATENCY_S, PUBLISHED_SUSTAINED = 4.5e-6, 0.85
"""Of the study: latency of a product, and the share of the peak that a large one reaches."""

CONSTANT, CUBIC = 0.3, 2.7
"""Local exponents d ln t / d ln n below and above which time counts as constant and cubic."""

MEASURED = "measured in place of model"


class Measured(NamedTuple):
    """Products `[row]`: tokens, columns and inner size, and time [s]."""

    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    seconds: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """Side of the cube of the same arithmetic."""
        return np.cbrt(self.m * self.n * self.k)


def measured(rows: int | None) -> Measured:
    """16-bit products of the shipped table on the chip, the first `rows` of them in a quick run."""
    table = published("matmul")
    table = table.select((table.chips() == CHIP) & np.isin(table.texts("dtype"), ("bf16", "fp16")))
    m, n, k = (table.numbers(name)[:rows] for name in ("m", "n", "k"))
    return Measured(m, n, k, table.seconds()[:rows])


def local_exponent(sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """d ln t / d ln n."""
    return np.gradient(np.log(seconds), np.log(sizes))


def regimes(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Sizes at which time stops being constant, and from which on it is cubic."""
    slope = local_exponent(sizes, seconds)
    return float(sizes[np.argmax(slope > CONSTANT)]), float(
        sizes[len(slope) - np.argmax(slope[::-1] < CUBIC) - 1]
    )


def errors(
    real: Measured, predicted: np.ndarray, edges: tuple[float, float]
) -> list[dict[str, Any]]:
    """Median of |model / measured − 1| of all products and by regime of the square product of the
    same arithmetic."""
    ratio = predicted / real.seconds
    parts = {
        "all products": np.full(len(ratio), True),
        f"constant, below {edges[0]:.0f}": real.size < edges[0],
        f"between, {edges[0]:.0f} to {edges[1]:.0f}": (real.size >= edges[0])
        & (real.size < edges[1]),
        f"cubic, above {edges[1]:.0f}": real.size >= edges[1],
    }
    lines = []
    for name, part in parts.items():
        if part.any():
            note = (
                f"{int(part.sum())} products; median |model / measured − 1| "
                f"{100 * np.median(np.abs(ratio[part] - 1.0)):.1f} %"
            )
            theirs, mine = (
                float(np.median(seconds[part])) for seconds in (real.seconds, predicted)
            )
            lines.append(compared(f"{name}: median time [s]", theirs, mine, note))
    return lines


def main() -> None:
    """Time squares, compare with what was measured, draw both."""
    args = options(__doc__ or "")
    chip = gpu("A100 SXM").chip
    assert isinstance(chip, Gpu)
    sizes = np.unique(np.round(2.0 ** np.arange(4.0, 14.26, 0.25) / 8.0) * 8.0)
    sizes = sizes[sizes > 0.0]
    square = np.asarray(matmul_time(sizes, sizes, sizes, chip))
    edges = regimes(sizes, square)
    real = measured(100 if args.quick else None)
    card = chip.replace(hbm_bytes_per_s=np.float64(catalog.chip(CHIP, "bf16").hbm_bytes_per_s))
    predicted = np.asarray(matmul_time(real.k, real.n, real.m, card))
    fastest = float((2.0 * real.m * real.n * real.k / real.seconds).max() / chip.flops_per_s)
    slope = local_exponent(sizes, square)
    middle = (sizes > edges[0]) & (sizes < edges[1])
    comparison = [
        compared(
            "constant regime: time of the smallest square [s]",
            PUBLISHED_LATENCY_S,
            float(square[0]),
        ),
        compared(
            "the same, measured: the fastest product [s]",
            PUBLISHED_LATENCY_S,
            float(real.seconds.min()),
            MEASURED,
        ),
        compared(
            "middle regime: mean exponent in the size",
            1.0,
            float(slope[middle].mean()),
            "the study calls it linear",
        ),
        compared("cubic regime: exponent at the largest square", 3.0, float(slope[-1])),
        compared(
            "cubic regime: share of the peak",
            PUBLISHED_SUSTAINED,
            float(2 * sizes[-1] ** 3 / square[-1] / chip.flops_per_s),
        ),
        compared("the same, measured: the best product", PUBLISHED_SUSTAINED, fastest, MEASURED),
        *(
            {**line, "what": f"measured A100-80GB, {line['what']}"}
            for line in errors(real, predicted, edges)
        ),
    ]
    lines = [
        {"kind": "square, theory", "m": s, "n": s, "k": s, "model_s": float(t)}
        for s, t in zip(sizes, square, strict=True)
    ]
    lines += [
        {"kind": "measured", "m": m, "n": n, "k": k, "measured_s": s, "model_s": float(p)}
        for m, n, k, s, p in zip(*(x.tolist() for x in real), predicted.tolist(), strict=True)
    ]
    shared.deliver(
        "data_movement_limits_matmul",
        comparison,
        lines,
        _figure(sizes, square, edges, real, predicted),
        args,
    )


def _figure(
    sizes: np.ndarray,
    square: np.ndarray,
    edges: tuple[float, float],
    real: Measured,
    predicted: np.ndarray,
) -> Any:
    from matplotlib.ticker import NullFormatter

    figure = style.new_figure(9.6, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.loglog(
        real.size,
        1e6 * real.seconds,
        ".",
        color=style.SKY,
        markersize=4,
        alpha=0.7,
        label="measured, A100-80GB, all shapes",
    )
    left.loglog(
        sizes, 1e6 * square, color=style.INK, linewidth=1.8, label="theory, square products"
    )
    for edge in edges:
        left.axvline(edge, color=style.GREY, linewidth=0.8, linestyle=":")
    for x, text in zip(
        (sizes[0], edges[0], edges[1]), ("constant", "traffic", "cubic"), strict=True
    ):
        left.text(
            1.08 * x,
            0.97,
            text,
            transform=left.get_xaxis_transform(),
            va="top",
            fontsize=8.5,
            color=style.GREY,
        )
    left.set(xlabel="size: cube root of m n k", ylabel="time [µs]", ylim=(2.0, None))
    left.set_title("A matrix product on an A100")
    left.legend(frameon=False, fontsize=8, loc="center left")
    right.axhspan(1 / 1.25, 1.25, color=style.PALE, linewidth=0)
    right.loglog(
        1e6 * real.seconds, predicted / real.seconds, ".", color=style.BLUE, markersize=4, alpha=0.6
    )
    right.axhline(1.0, color=style.GREY, linewidth=0.8)
    right.set(xlabel="measured [µs]", ylabel="theory / measured", ylim=(0.25, 4.0))
    right.yaxis.set_minor_formatter(NullFormatter())
    right.set_yticks([0.25, 0.5, 1.0, 2.0, 4.0], ["1/4", "1/2", "1", "2", "4"])
    right.set_title("Theory against measured, ± 25 %")
    return figure


if __name__ == "__main__":
    run_study(main)
