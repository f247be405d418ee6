"""A sweep by all devices of this process, and of the others where there are several: prints a sum
over the bits of its answer. NUMBER OF PROCESSES ADDRESS, none where it is alone."""

import hashlib
import sys

import jax
import numpy as np

from dmodel.types import enable_float64


def polynomial(batch, fixed):
    """Outputs of several shapes."""
    x, y = batch["x"], batch["y"]
    return {"whole": fixed * 2.0, "sum": x * x + y, "both": jax.numpy.stack([x, y * fixed])}


def main() -> None:
    """Sweep sizes that fill no block, one, and several."""
    if sys.argv[1:]:
        number, processes, address = sys.argv[1:]
        jax.distributed.initialize(address, int(processes), int(number))
    enable_float64()
    from dmodel.sweep import gradients, sweep

    whole = hashlib.sha256()
    for n in (1, 100, 16384, 150_001):
        draw = np.random.default_rng(n)
        batch = {"x": draw.normal(size=n), "y": draw.normal(size=n)}
        found = sweep(polynomial, batch, 3.0)
        assert found["both"].shape == (2, n) and found["sum"].shape == (n,)
        value, slopes = gradients(lambda b, f: b["x"] ** 2 * b["y"] * f["a"], batch, {"a": 2.0})
        for leaf in (*found.values(), value, *slopes.values()):
            whole.update(np.asarray(leaf).tobytes())
    print(jax.device_count(), whole.hexdigest())


if __name__ == "__main__":
    main()
