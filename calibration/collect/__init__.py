"""Measure a machine: micro-benchmarks and training steps, recorded so that nothing finished is ever
lost or repeated.

Needs only jax, flax, optax, numpy and the standard library. The parts that measure import jax's
devices only when they run, so that
reading and merging records touches no accelerator.
"""
