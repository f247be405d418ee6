"""Jobs that searches for a plan are judged by: 64 of a model, a system and a number of devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dmodel.design import EVERYTHING, Choices, Problem, problem
from experiments import design_common as shared


class Case(NamedTuple):
    """One job: what is trained with how many sequences per step on how many devices; everything:
    all choices, else the usual ones."""

    model: str
    seq_len: int
    system: str
    devices: int
    batch: int
    everything: bool = False

    @property
    def name(self) -> str:
        """The job in a few words."""
        return (
            f"{self.model} · {self.devices} × "
            f"{self.system}{' · everything' if self.everything else ''}"
        )


def _jobs() -> Iterator[Case]:
    for system, devices in (
        ("A100-DGX", 64),
        ("H100-DGX", 512),
        ("GB200-NVL72", 1152),
        ("TPU-v5p", 256),
        ("MI300X-OAM", 128),
    ):
        yield Case("llama-3-8b", 8192, system, devices, devices * 2)
        yield Case("llama-3-70b", 8192, system, devices, 1152 if devices == 1152 else 1024)
        yield Case("gpt-3-13b", 2048, system, devices, devices * 4)
        yield Case("mixtral-8x7b", 4096, system, devices, devices * 4)
    for system, devices in (
        ("A100-DGX", 512),
        ("H100-DGX", 4096),
        ("H200-HGX", 1024),
        ("B200-DGX", 768),
    ):
        yield Case("gpt-3-175b", 2048, system, devices, 1536)
        yield Case("llama-3.1-405b", 8192, system, max(devices, 1024), 2048)
        yield Case("nemotron-4-340b", 4096, system, max(devices, 768), 2304)
        yield Case("deepseek-v3", 4096, system, max(devices, 1024), 4096)
    for system, devices in (("A100-40GB-DGX", 96), ("H100-RoCE-3200", 384), ("TPU-v6e", 256)):
        yield Case("llama-2-13b", 4096, system, devices, devices * 4)
        yield Case("qwen-3-32b", 4096, system, devices, 1536)
        yield Case("mixtral-8x22b", 4096, system, devices, 1536)
        yield Case("mistral-7b", 32768, system, devices, devices)
    for model, seq_len, devices, batch in (
        ("gpt-3-175b", 2048, 512, 1536),
        ("gpt-3-175b", 2048, 4096, 1536),
        ("llama-3-70b", 8192, 256, 1024),
        ("llama-3.1-405b", 8192, 2048, 2048),
        ("mixtral-8x7b", 4096, 128, 1024),
        ("turing-530b", 2048, 2240, 1920),
    ):
        yield Case(model, seq_len, "A100-DGX", devices, batch, everything=True)
        yield Case(model, seq_len, "H100-DGX", devices, batch, everything=True)
    # where few plans fit, or none
    for system in ("A100-DGX", "H100-DGX", "B200-DGX", "TPU-v5p"):
        yield Case("deepseek-v3", 4096, system, 512, 1024)


CASES: tuple[Case, ...] = tuple(_jobs())


def stated(case: Case, profile: str | None = None) -> Problem:
    """The problem of a job, by the coefficients of a profile, or the shipped ones nearest to its
    chip."""
    at = shared.machine(case.system, profile)
    choices = EVERYTHING if case.everything else Choices()
    return problem(
        at.system,
        shared.model(case.model, case.seq_len),
        case.devices,
        case.batch,
        at.coefficients,
        choices=choices,
    )
