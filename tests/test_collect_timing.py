"""Timing: when it stops, what it keeps, how it splits a profile, and what the sensors say."""

import math
import random
import sys
import types

import pytest

from calibration.collect import profiler, sensors
from calibration.collect.profiler import Event
from calibration.collect.timing import (
    Settings,
    Timing,
    half_width,
    interval_ranks,
    median,
    summary,
    timed,
)


class Clock:
    """Time that passes only when something is called."""

    def __init__(self, durations):
        self.now, self.durations, self.calls = 0.0, durations, 0

    def __call__(self):
        return self.now

    def call(self, number):
        assert number == self.calls
        self.calls += 1
        self.now += self.durations(number)
        return number


def time_it(durations, **settings):
    clock = Clock(durations)
    return timed(clock.call, lambda result: result, Settings(**settings), clock=clock), clock


def test_a_steady_thing_needs_few_samples():
    found, _ = time_it(lambda i: 0.01, sample_s=0.001)
    assert found.settled and len(found.samples) == 7 and found.samples[0] == pytest.approx(0.01)


def test_a_noisy_thing_gets_more_samples_until_its_median_is_known():
    draw = random.Random(0)
    found, _ = time_it(
        lambda i: 0.01 * draw.lognormvariate(0.0, 0.05), precision=0.01, longest_s=1e9, most=10_000
    )
    assert found.settled and 20 < len(found.samples) < 2000
    assert half_width(found.samples, 0.95) <= 0.01 and median(found.samples) == pytest.approx(
        0.01, rel=0.02
    )


def test_a_hopeless_thing_ends_at_the_limit_and_says_so():
    draw = random.Random(0)
    found, clock = time_it(
        lambda i: draw.lognormvariate(-4.0, 2.0), precision=1e-4, longest_s=3.0, most=50
    )
    assert not found.settled and (len(found.samples) == 50 or clock.now >= 3.0)


def test_short_calls_share_a_sample():
    found, _ = time_it(lambda i: 1e-5, sample_s=1e-3)
    assert found.calls in (100, 101) and found.samples[0] == pytest.approx(1e-5)


def test_the_first_calls_do_not_count():
    found, _ = time_it(lambda i: 10.0 if i < 2 else 0.01, longest_s=1.0)
    assert max(found.samples) < 1.0 and found.warmup_s >= 20.0


def test_the_interval_holds_the_median_as_often_as_it_says():
    draw, inside = random.Random(1), 0
    for _ in range(2000):
        low, high = interval_ranks(15, 0.95)
        ordered = sorted(draw.expovariate(1.0) for _ in range(15))
        inside += ordered[low] <= math.log(2.0) <= ordered[high]
    assert 0.95 <= inside / 2000 <= 0.985


def test_few_samples_know_no_interval():
    assert interval_ranks(5, 0.95) is None and half_width([1.0] * 5, 0.95) == math.inf


def test_all_samples_are_kept_or_their_quantiles_and_outliers():
    few = summary(Timing((1.0, 2.0, 3.0), 1, 0.1, False, 0.95))
    assert few["all_s"] == [1.0, 2.0, 3.0] and few["median_s"] == 2.0
    draw = random.Random(2)
    samples = tuple(draw.gauss(1.0, 0.01) for _ in range(1000)) + (7.0, 9.0)
    many = summary(Timing(samples, 3, 0.1, True, 0.95))
    assert "all_s" not in many and many["outliers_s"][:2] == [9.0, 7.0]
    assert (
        many["quantiles_s"][10] == pytest.approx(many["median_s"], rel=1e-3)
        and many["low_s"] < many["median_s"] < many["high_s"]
    )


def test_processes_make_as_many_calls_as_process_0():
    """A process that thinks otherwise follows."""
    said = []

    def lead(value):
        said.append(value)
        return value

    clock = Clock(lambda i: 0.01)
    timed(clock.call, lambda r: r, Settings(), agree=lead, clock=clock)
    answers = iter(said)
    slow = Clock(lambda i: 0.05)
    timed(slow.call, lambda r: r, Settings(), agree=lambda value: next(answers), clock=slow)
    assert slow.calls == clock.calls


def events(*spans, device="d0", name="dot"):
    return [Event(device, name, 1e9 * a, 1e9 * b) for a, b in spans]


def test_a_profile_splits_into_computing_and_communicating():
    found = profiler.split(
        events((0, 2), (1, 3), (5, 6)) + events((2, 5.5), name="all-reduce.3"), 1
    )
    assert found["compute_s"] == pytest.approx(4.0) and found["communication_s"] == pytest.approx(
        3.5
    )
    assert found["both_s"] == pytest.approx(1.5) and found["busy_s"] == pytest.approx(6.0)
    assert found["operations"]["all-reduce"] == pytest.approx(3.5)


def test_devices_are_averaged_and_calls_divided():
    found = profiler.split(events((0, 4)) + events((0, 2), device="d1"), 2)
    assert found["compute_s"] == pytest.approx(1.5) and found["devices"] == 2


def test_loops_do_not_count_beside_what_they_contain():
    inside = profiler.innermost(
        events((0, 10), name="while") + events((1, 2), (2, 4)) + events((12, 13))
    )
    assert [(e.name, e.start) for e in inside] == [("dot", 1e9), ("dot", 2e9), ("dot", 12e9)]


@pytest.mark.parametrize(
    "name",
    [
        "all-reduce.1",
        "ncclDevKernel_AllGather_RING_LL",
        "reduce_scatter_fusion",
        "psum",
        "collective-permute",
    ],
)
def test_names_of_communication(name):
    assert profiler.COMMUNICATION.search(name)


@pytest.mark.parametrize(
    "name", ["dot.3", "reduce_fusion", "sendaway_fusion", "gemm_fusion", "scatter"]
)
def test_names_of_computing(name):
    assert not profiler.COMMUNICATION.search(name)


def test_an_empty_profile_says_so():
    assert "unavailable" in profiler.split([], 1)


def plane(name, **lines):
    made = []
    for line, found in lines.items():
        rows = [
            types.SimpleNamespace(name=n, start_ns=a, duration_ns=b - a, stats=list(s.items()))
            for n, a, b, s in found
        ]
        made.append(types.SimpleNamespace(name=line.replace("_", " "), events=rows))
    return types.SimpleNamespace(name=name, lines=made)


def test_a_gpus_streams_count_once():
    """The plane also repeats the streams' work as lines of operations and modules."""
    stream = [("gemm", 0, 10, {}), ("nccl", 5, 15, {})]
    gpu = plane(
        "/device:GPU:0", Stream_7=stream, XLA_Ops=[("dot", 0, 10, {})], Steps=[("1", 0, 20, {})]
    )
    found = profiler.events(types.SimpleNamespace(planes=[gpu]))
    assert sorted(e.name for e in found) == ["gemm", "nccl"]


def test_a_hosts_threads_count_where_they_name_an_operation():
    stats = {"hlo_op": "dot.3", "device_ordinal": 1}
    host = plane("/host:CPU", tf_thread=[("dot", 0, 10, stats), ("Execute", 0, 20, {})])
    assert profiler.events(types.SimpleNamespace(planes=[host])) == [Event("cpu:1", "dot.3", 0, 10)]


class Driver(types.ModuleType):
    """A driver with one device that runs at 1500 MHz."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """As the driver's package calls its errors."""

    def __init__(self, broken=False):
        super().__init__("pynvml")
        self.broken, self.asked = broken, []

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index):
        self.asked.append(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, name):
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1500 if kind == self.NVML_CLOCK_SM else 2600

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 55

    def nvmlDeviceGetPowerUsage(self, handle):
        return 650_000


def test_sensors_read_clock_temperature_and_power(monkeypatch):
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    found = sensors.Sensors(1)
    found.read()
    assert driver.asked == [6]
    assert found.summary() == {
        "readings": 1,
        "sm_mhz": [1500] * 3,
        "memory_mhz": [2600] * 3,
        "celsius": [55] * 3,
        "watts": [650.0] * 3,
    }


@pytest.mark.parametrize(
    ("module", "visible", "message"),
    [
        (None, "", "not installed"),
        (Driver(broken=True), "", "does not answer"),
        (Driver(), "GPU-123", "does not know device"),
    ],
)
def test_without_sensors_a_record_says_why(monkeypatch, module, visible, message):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = sensors.Sensors(0)
    found.read()
    assert message in found.summary()["unavailable"]


def test_other_devices_have_no_such_sensors():
    assert sensors.Sensors(None).summary() == {"unavailable": "not an NVIDIA device"}
