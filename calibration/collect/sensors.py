"""Clock, temperature and power of NVIDIA devices while they are measured, where the driver's Python
package is installed.

`pynvml` (the extra `nvml`) is optional: without it, or without such a device, a measurement says
why it has no readings.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

FEWEST_S = 0.1
"""Readings are at least this far apart [s]: the driver refreshes power about so often, and asking
costs a millisecond."""


class Sensors:
    """Readings of one device, taken whenever `read` is called, but not too often.

    Args:
      index: of the device among those that the process may see; None where there is no such device.
    """

    def __init__(self, index: int | None):
        self.readings: list[dict[str, float]] = []
        self._last = -FEWEST_S
        self._driver: Any
        self._driver, self.reason = (None, "not an NVIDIA device") if index is None else _driver()
        self._handle = None
        if self._driver is not None and index is not None:
            self._handle, self.reason = _handle(self._driver, index)

    def read(self) -> None:
        """Take a reading if the last one is old enough; a reading that fails ends them, with its
        reason."""
        now = time.monotonic()
        if self._handle is None or now - self._last < FEWEST_S:
            return
        self._last = now
        driver = self._driver
        try:
            self.readings.append(
                {
                    "sm_mhz": driver.nvmlDeviceGetClockInfo(self._handle, driver.NVML_CLOCK_SM),
                    "memory_mhz": driver.nvmlDeviceGetClockInfo(
                        self._handle, driver.NVML_CLOCK_MEM
                    ),
                    "celsius": driver.nvmlDeviceGetTemperature(
                        self._handle, driver.NVML_TEMPERATURE_GPU
                    ),
                    "watts": driver.nvmlDeviceGetPowerUsage(self._handle) / 1000.0,
                }
            )
        except driver.NVMLError as error:
            self._handle, self.reason = None, f"the driver gives no readings: {error}"

    def joules(self) -> float | None:
        """Energy that the device has used since its driver was loaded [J]; None where it does not
        tell."""
        if self._handle is None:
            return None
        try:
            return self._driver.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000.0
        except self._driver.NVMLError:
            return None

    def summary(self) -> dict[str, Any]:
        """Least, middle and largest of each reading, or why there are none."""
        if not self.readings:
            return {"unavailable": self.reason or "no reading was taken"}
        names = self.readings[0]
        columns = {name: sorted(r[name] for r in self.readings) for name in names}
        return {"readings": len(self.readings)} | {
            n: [c[0], c[len(c) // 2], c[-1]] for n, c in columns.items()
        }


def _driver() -> tuple[Any, str]:
    """The driver's package, ready, or why there is none."""
    try:
        driver = importlib.import_module("pynvml")
    except ImportError:
        return None, "the package nvidia-ml-py is not installed (dmodel-jax[nvml])"
    try:
        driver.nvmlInit()
    except driver.NVMLError as error:
        return None, f"the NVIDIA driver does not answer: {error}"
    return driver, ""


def _handle(driver: Any, index: int) -> tuple[Any, str]:
    """The driver's handle of the index-th visible device."""
    visible: Sequence[str] = [
        x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x.strip()
    ]
    name = visible[index] if index < len(visible) else str(index)
    try:
        if name.isdigit():
            return driver.nvmlDeviceGetHandleByIndex(int(name)), ""
        return driver.nvmlDeviceGetHandleByUUID(name), ""
    except driver.NVMLError as error:
        return None, f"the driver does not know device {name}: {error}"
