"""In how many bytes everything is computed, kept and sent."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.types import Array, at_hand

NARROW = 1.99
"""Operands of fewer bytes are below 16 bits [byte]; nudges to either side of 2 are not."""


class Precision(struct.PyTreeNode, kw_only=True):
    """Bytes of operands, of what a parameter takes in memory, and of what is sent.

    Attributes:
      operand_bytes: of an operand of the layers' products [byte]; 2 = 16 bits, 1 = 8.
      attention_bytes: of an operand of the attention core, where it is fused [byte]; 2 = 16 bits.
      wide_layers: share of the layers whose products stay in 16 bits [1]; 0 = none.
      scale_passes: times that a tensor is read beside its cast, for its scales [1]; 0 = never.
      gather_bytes: of a parameter when weights are gathered [byte].
      weight_bytes: of a stored weight [byte].
      end_bytes: of a stored weight of embedding and head [byte]; 0 = as of the layers.
      whole_bytes: of a layers' weight that every rank has, however sharded [byte]; 0 = none.
      dequantize: time to bring layers' weights to 16 bits over its traffic's [1]; 0 = no need.
      gradient_bytes: of a stored gradient [byte].
      raw_gradient_bytes: held beside the gradient, as made or as sent [byte]; 0 = none.
      optimizer_bytes: of a parameter's state; 12 = fp32 weight and two moments [byte].
      update_bytes: of a parameter that the update takes beside its state [byte]; 0 = none.
      logit_bytes: alive per logit; 8 = product (2), fp32 copy (4), gradient (2) [byte].
      reduce_bytes: of a gradient on the wire [byte].
      narrow_gathers: 1 = tensor ranks gather in the operands' bytes; 0 = in 16 bits.
      narrow_sums: 1 = tensor ranks sum forward in the operands' bytes; 0 = in 16 bits.
    """

    CHOICES = frozenset("narrow_gathers narrow_sums attention_bytes".split())
    """Fields that are choices, not sizes: no derivative is asked for."""

    operand_bytes: Array = 2.0
    attention_bytes: Array = 2.0
    wide_layers: Array = 0.0
    scale_passes: Array = 0.0
    gather_bytes: Array = 2.0
    weight_bytes: Array = 2.0
    end_bytes: Array = 0.0
    whole_bytes: Array = 0.0
    dequantize: Array = 0.0
    gradient_bytes: Array = 4.0
    raw_gradient_bytes: Array = 0.0
    optimizer_bytes: Array = 12.0
    update_bytes: Array = 0.0
    logit_bytes: Array = 8.0
    reduce_bytes: Array = 2.0
    narrow_gathers: Array = 1.0
    narrow_sums: Array = 0.0

    @property
    def low_precision(self) -> Array:
        """1 where the layers' products run below 16 bits, else 0; a step, of slope 0."""
        if at_hand(self.operand_bytes):
            return np.where(np.less(self.operand_bytes, NARROW), 1.0, 0.0)
        return jnp.where(jnp.less(self.operand_bytes, NARROW), 1.0, 0.0)
