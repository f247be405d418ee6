"""Relations between the numbers of chips and systems that typing errors break, with the exceptions
that their makers print; and that each entry says what it was compared with, or what is in doubt."""

import re

import pytest

from dmodel.catalog.loader import table

CHIPS, SYSTEMS = table("chips"), table("systems")


def entries():
    return [pytest.param(e, id=n) for kind in (CHIPS, SYSTEMS) for n, e in kind.items()]


def rates(name):
    return {p: rate["value"] for p, rate in CHIPS[name]["flops_per_s"].items()}


@pytest.mark.parametrize("entry", entries())
def test_each_entry_was_looked_up_or_says_what_is_in_doubt(entry):
    compared, doubts = entry.get("compared", []), entry.get("doubts", [])
    assert compared or doubts
    for one in compared:
        assert set(one) == {"what", "with", "date"} and len(one["what"]) > 2
        assert len(one["with"]) > 10 and re.fullmatch(r"202\d-\d\d(-\d\d)?", one["date"])
    assert all(len(text) > 10 for text in doubts)


EIGHT_OVER_SIXTEEN = {
    ("Gaudi-3", "fp8"): 1.0,
    ("TPU-v4", "int8"): 1.0,
    ("TPU-v5p", "fp8"): 1.0,
    ("TPU-v6e", "fp8"): 1.0,
    ("Trn1", "fp8"): 1.0,
    ("Trn1-core", "fp8"): 1.0,
    ("Trn2", "fp8"): 1299 / 667,
    ("Trn2-core", "fp8"): 1299 / 667,
    ("Trn3", "mxfp8"): 2517 / 671,
    ("Trn3-core", "mxfp8"): 2517 / 671,
    ("MI210", "int8"): 1.0,
    ("MI250X", "int8"): 1.0,
    ("MI250X-GCD", "int8"): 1.0,
    ("L40S", "fp8"): 733 / 362.05,
    ("L40S", "fp8-blockwise128"): 733 / 362.05,
    ("L40S", "int8"): 733 / 362.05,
    ("RTX-3090", "int8"): 4.0,
    ("RTX-4090", "int8"): 4.0,
    ("RTX-5090", "int8"): 4.0,
    ("B300", "int8"): 150 / 2250,
    ("GB300", "int8"): 165 / 2500,
    ("Rubin", "fp8"): 4.375,
    ("Rubin", "fp8-blockwise128"): 4.375,
    ("Rubin", "mxfp8"): 4.375,
}
"""Rates of 8 bits that are not twice those of 16, over these: integers that GeForce does not halve
or Blackwell Ultra cuts, chips without rates of their own for 8 bits, and Rubin's."""

FOUR_OVER_EIGHT = {"B300": 14 / 4.5, "GB300": 3.0, "RTX-5090": 4.0}
"""Rates of nvfp4 that are not twice those of fp8, over these: more units of Blackwell Ultra, and
sums in fp32 that halve fp8 on GeForce."""


@pytest.mark.parametrize("name", CHIPS)
def test_rates_of_16_bits_are_equal_and_those_of_8_twice_as_high(name):
    known = rates(name)
    half = known.get("bf16", known.get("fp16"))
    assert known.get("fp16", half) == half
    for precision, rate in known.items():
        if precision in ("fp8", "fp8-blockwise128", "mxfp8", "int8"):
            ratio = EIGHT_OVER_SIXTEEN.get((name, precision), 2.0)
            assert rate / half == pytest.approx(ratio, rel=0.01), precision


@pytest.mark.parametrize("name", [n for n in CHIPS if "nvfp4" in rates(n)])
def test_rates_of_4_bits_are_twice_those_of_8(name):
    known = rates(name)
    assert known["nvfp4"] / known["fp8"] == pytest.approx(FOUR_OVER_EIGHT.get(name, 2.0), rel=0.01)


def test_exceptions_are_of_chips_and_precisions_that_there_are_and_needed():
    for (name, precision), ratio in EIGHT_OVER_SIXTEEN.items():
        assert precision in rates(name)
        assert ratio != pytest.approx(2.0, rel=0.01)
    assert set(FOUR_OVER_EIGHT) <= set(CHIPS)


PARTS = {
    "MI250X-GCD": ("MI250X", 2),
    "TPU-v7x-core": ("TPU-v7x", 2),
    "Trn1-core": ("Trn1", 2),
    "Trn2-core": ("Trn2", 4),
    "Trn3-core": ("Trn3", 4),
    "PVC-1550-tile": ("PVC-1550", 2),
}
"""Devices that are parts of a chip: the chip, and how many it has."""


@pytest.mark.parametrize("name", PARTS)
def test_parts_add_up_to_their_chip(name):
    whole, count = PARTS[name]
    assert rates(name).keys() == rates(whole).keys()
    for precision, rate in rates(name).items():
        assert count * rate == pytest.approx(rates(whole)[precision], rel=1e-3)
    for key in ("hbm_bytes", "hbm_bytes_per_s", "peak_power"):
        assert count * CHIPS[name][key]["value"] == pytest.approx(CHIPS[whole][key]["value"], 1e-3)


NOMINAL_GB = {"B200": 180, "B300": 270, "GB200": 186, "GB300": 279, "H200-NVL": 141, "L4": 24}
"""Memory that makers name, of chips whose name here does not say it."""


@pytest.mark.parametrize("name", CHIPS)
def test_memory_is_what_the_name_says(name):
    said = re.search(r"-(\d+)GB$", name)
    nominal = float(said[1]) if said else NOMINAL_GB.get(name)
    if nominal is not None:
        assert 0.995 * nominal <= CHIPS[name]["hbm_bytes"]["value"] / 1e9 <= 1.0738 * nominal


OF_GENERATION = {
    "NVLink 2": [150],
    "NVLink 3": [300, 200],
    "NVLink 4": [450, 200],
    "NVLink 5": [900],
    "NVLink 6": [1800],
    "PCIe 4": [32, 16],
    "PCIe 5": [64, 32],
    "PCIe 4 over two sockets": [13],
    "HCCS": [196],
}
"""Bandwidth of a link by its generation [GB/s, one direction]: whole; cut for export, or through
the memory of the host where cards have no peer access. Of cards at two processors that of the link
between these, the mean of 10 (Intel) and 16 (AMD)."""

CUT = {
    "A800-HGX",
    "H800-HGX",
    "RTX-3090-PCIe",
    "RTX-4090-PCIe",
    "RTX-5090-PCIe",
}
"""Systems with the lower one."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_links_of_a_generation_have_its_bandwidth(name):
    for level in SYSTEMS[name]["levels"]:
        if level["name"] in OF_GENERATION:
            expected = OF_GENERATION[level["name"]][-1 if name in CUT else 0]
            assert level["bytes_per_s"]["value"] == expected * 1e9


PORTS_GBPS = {10.0, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 2400.0}
"""Rates of ports of networks, or of all ports of a device [Gb/s]."""

SHARED = {1, 2, 3, 4, 8, 12}
"""Devices that may share a port, and ports that devices may share."""


def test_cards_at_two_processors_are_slower_than_a_link_of_theirs():
    """A ring over all cards of a host crosses the processors' link: below any one card's link."""
    shared = [name for name in SYSTEMS if "two sockets" in SYSTEMS[name]["levels"][0]["name"]]
    assert "A100-PCIe-Server" in shared
    for name in shared:
        level = SYSTEMS[name]["levels"][0]
        assert level["size"]["value"] == 8
        assert 10e9 <= level["bytes_per_s"]["value"] <= 16e9 < 32e9


@pytest.mark.parametrize("name", SYSTEMS)
def test_networks_between_hosts_are_shares_of_ports(name):
    level = SYSTEMS[name]["levels"][-1]
    if name in BEYOND_PORTS or level["torus_axes"]["value"] > 1:
        return
    gbps = 8e-9 * level["bytes_per_s"]["value"]
    shares = {port * a / b for port in PORTS_GBPS for a in SHARED for b in SHARED}
    assert any(gbps == pytest.approx(share, rel=1e-6) for share in shares)


BEYOND_PORTS = {"H100-Llama-3", "RTX-A6000-NVLink"}
"""Systems whose outermost level is an oversubscribed tier, or no network."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_inner_levels_are_the_faster_ones(name):
    rates = [level["bytes_per_s"]["value"] for level in SYSTEMS[name]["levels"]]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < CHIPS[SYSTEMS[name]["chip"]]["hbm_bytes_per_s"]["value"]
