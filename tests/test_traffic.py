"""Memory traffic of kernels that stream, by hand."""

import numpy as np
import pytest

from dmodel import catalog, coefficients, counts, traffic
from dmodel.blocks import Dense
from dmodel.records import Model, Plan, sized, value
from dmodel.step import step_time
from dmodel.tables import layer
from tests.points import ATTENTION, DENSE, EDGE_MODELS, of_blocks

ONE = Plan.of(dp=1.0, global_batch=8.0)
MLP = Dense(d_ff=11000.0)


def visited(model: Model, plan: Plan) -> float:
    """Tokens that a device computes for experts that read h."""
    return float(layer(model, plan).sent) / 2.0 / float(model.d_model)


def test_casts_only_below_16_bits():
    products = layer(DENSE, ONE).products
    assert float(traffic.cast_bytes(products, DENSE, ONE)) == 0.0
    left, _, result = (np.asarray(x) for x in products.elements)
    eight = ONE.having(operand_bytes=1.0)
    assert float(traffic.cast_bytes(products, DENSE, eight)) == pytest.approx(
        4.0 * (left + result)[:-1].sum()
    )


def test_elementwise_kernels_read_and_write_what_their_passes_do():
    """GPT-like layers forward and backward, by hand: norms 2 and 3 times h, additions 3 and 3,
    rotation of queries and keys 2 and 2, the activation 2 and 3 of its width, 3 and 5 with a gate;
    copies to k experts and back as often backward as forward, and there the input and the gradient
    of their activation once more, for the weights of routes."""
    t, h, f = float(counts.tokens(DENSE, ONE)), float(DENSE.d_model), 11000.0
    turned = 2.0 * (33.0 + 9.0) * 120.0
    for gated, forward, backward in ((0.0, 2.0, 3.0), (1.0, 3.0, 5.0)):
        found = layer(sized(DENSE, gated_mlp=gated), ONE).streams
        assert float(found.forward) == pytest.approx(
            2.0 * t * (2.0 * (2.0 + 3.0) * h + turned + forward * f)
        )
        assert float(found.backward) == pytest.approx(
            2.0 * t * (2.0 * (3.0 + 3.0) * h + turned + backward * f)
        )
    experts = sized(EDGE_MODELS[2], gated_mlp=0.0)
    more = [layer(sized(experts, top_k=k), ONE).streams for k in (2.0, 1.0)]
    visits = visited(sized(experts, top_k=1.0), ONE)
    for a, b, activation in zip(*more, (2.0, 3.0 + 2.0), strict=True):
        assert a - b == pytest.approx(2.0 * visits * (2.0 * experts.d_model + activation * 2048.0))


def test_biases_of_experts_one_by_one_are_68_bytes_of_each_element():
    """Only where experts are looped over: 28 forward, 40 backward."""
    mixture, looped = EDGE_MODELS[2], ONE.having(looped_experts=1.0)
    biased, returned = (
        sized(mixture, expert_biases=1.0),
        visited(mixture, looped) * mixture.d_model,
    )
    for nbytes, with_biases, without in zip(
        (28.0, 40.0),
        layer(biased, looped).streams,
        layer(mixture, looped).streams,
        strict=True,
    ):
        assert with_biases - without == pytest.approx(nbytes * returned)
    assert layer(biased, ONE).streams == layer(mixture, ONE).streams
    assert layer(DENSE, looped).streams == layer(DENSE, ONE).streams


def test_tokens_are_moved_again_where_copies_are_parted_or_padded():
    """2 bytes read or written, twice a pass: once more behind an exchange of merged copies, twice
    more for narrow experts that are looped over; HybridEP, which gathers a map, does both beside
    its messages."""
    mixture, spread = EDGE_MODELS[2], ONE.having(dp=4.0, ep=4.0)
    once = 2.0 * 2.0 * visited(mixture, spread) * mixture.d_model
    merged, eight = (
        {"merge_copies": 1.0},
        {"looped_experts": 1.0, "operand_bytes": 1.0},
    )
    for more, changes in (
        (1.0, merged),
        (2.0, eight),
        (1.0, eight | {"wide_layers": 0.5}),
        (3.0, eight | merged),
    ):
        for route, count in ((0.0, more), (1.0, 0.0)):
            found = layer(mixture, spread.having(**changes, route_bytes=route)).streams
            for a, b in zip(found, layer(mixture, spread).streams, strict=True):
                assert a - b == pytest.approx(count * once)


def test_fused_experts_neither_read_nor_move_what_lies_between_their_products():
    """Their activation is gone, with the sums for the weights of routes, and casts of its result
    and of its gradient only write."""
    mixture, eight = EDGE_MODELS[2], ONE.having(operand_bytes=1.0)
    fused = eight.having(fused_experts=1.0)
    width, gated = visited(mixture, eight) * 2048.0, value(mixture, "gated_mlp")
    for passes, a, b in zip(
        (2.0 + gated, 5.0 + 3.0 * gated),
        *(layer(mixture, p).streams for p in (eight, fused)),
        strict=True,
    ):
        assert a - b == pytest.approx(2.0 * passes * width)
    products = layer(mixture, eight).products
    saved = float(
        traffic.cast_bytes(products, DENSE, eight) - traffic.cast_bytes(products, DENSE, fused)
    )
    assert saved == pytest.approx(2.0 * (1.0 + 1.0 + gated) * width)
    assert layer(DENSE, fused).streams == layer(DENSE, eight).streams


@pytest.mark.parametrize(("sp", "mlp_share"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.4)])
def test_recomputation_that_ends_early_does_not_add_what_the_last_product_returns(sp, mlp_share):
    """Two read and one written over h, in 16 bits; what a step saves besides the product itself."""
    model, plan = (
        of_blocks(((1.0 - mlp_share) * 31.0, ATTENTION, None), (31.0 * mlp_share, ATTENTION, MLP))
        if mlp_share < 1.0
        else DENSE,
        Plan.of(dp=1.0, tp=4.0, sp=sp, global_batch=8.0, recompute_layers=1.0),
    )
    t, h = float(counts.tokens(model, plan)), float(model.d_model)
    assert float(layer(model, plan).added) == pytest.approx(
        3.0 * 2.0 * t * h * mlp_share / (4.0 if sp else 1.0)
    )
    # at the full clock, which what streams does not notice
    system, default = catalog.system("H100-DGX"), coefficients.default().replace(power_demand=1e-9)

    def saved(c):
        again = [
            float(step_time(system, model, plan.having(recompute_last=last), c).recompute)
            for last in (1.0, 0.0)
        ]
        return (again[0] - again[1]) / (float(model.n_layers) * float(plan.n_microbatches))

    none = saved(default.replace(elementwise_traffic=0.0))
    added = float(layer(model, plan).added) / float(
        system.chip.hbm_bytes_per_s * default.memory_efficiency
    )
    assert saved(default) - none == pytest.approx(
        float(default.elementwise_traffic) * added, rel=1e-9
    )
    assert none > 0.0


def test_adapters_move_what_their_kernels_read_and_write():
    """Each kernel by hand, forward and backward, split over ranks of tp."""
    plain = DENSE.replace(trainable=0.0, first_adapters=1.0, first_adapted=6144.0)
    t, h = float(counts.tokens(plain, ONE)), float(DENSE.d_model)
    forward, backward = traffic.adapter_bytes(plain, ONE)
    # A reads h, B writes; the scale reads and writes; the addition reads two and writes one
    assert forward == pytest.approx(2.0 * t * (h + 6144.0 * (1.0 + 2.0 + 3.0)))
    # the scale's gradient, then B's two read; A's weights read h, its input's gradient is written
    # and added
    assert backward == pytest.approx(2.0 * t * (6144.0 * (2.0 + 2.0) + h * (1.0 + 1.0 + 3.0)))
    dropped = traffic.adapter_bytes(plain.replace(adapter_dropout=1.0), ONE)
    # reads, writes, and a mask of a byte
    assert [b - a for a, b in zip((forward, backward), dropped, strict=True)] == pytest.approx(
        [2.0 * t * 2.5 * h] * 2
    )
    tp, sp = ONE.having(tp=4.0), ONE.having(tp=4.0, sp=1.0)
    assert traffic.adapter_bytes(plain, tp).forward == pytest.approx(
        2.0 * t * (h + 6144.0 * 6.0 / 4.0)
    )
    back = DENSE.replace(trainable=0.0, last_adapters=1.0, last_adapted=4096.0)
    for plan, split in ((tp, 1.0), (sp, 4.0)):
        assert traffic.adapter_bytes(back, plan).forward == pytest.approx(
            2.0 * t * (4096.0 / 4.0 + h * 6.0 / split)
        )
    assert traffic.adapter_bytes(DENSE, ONE) == (0.0, 0.0)


def test_frozen_weights_need_one_layout_of_what_is_cast():
    products, eight = layer(DENSE, ONE).products, ONE.having(operand_bytes=1.0)
    both, one = (
        float(traffic.cast_bytes(products, DENSE.replace(trainable=x), eight)) for x in (1.0, 0.0)
    )
    assert one == pytest.approx(both * 3.0 / 4.0)
