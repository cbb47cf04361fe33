"""Tests for placeto_tf.costs.op_costs."""

import numpy as np
import pytest

from placeto_tf.costs.op_costs import OpCosts
from placeto_tf.errors import CostError


def _costs(**changes):
  fields = dict(compute_us=np.ones((2, 1)), output_bytes=np.ones(3), persistent_bytes=np.zeros(2),
                temporary_bytes=np.zeros(2))
  fields.update(changes)
  return OpCosts(**fields)


@pytest.mark.parametrize("changes, message", [
    (dict(compute_us=np.array([[1.0], [-2.0]])), r"compute_us\[1, 0\] is -2.0"),
    (dict(compute_us=np.array([[np.nan], [1.0]])), r"compute_us\[0, 0\] is nan"),
    (dict(output_bytes=np.array([1, np.inf, 3])), r"output_bytes\[1\] is inf"),
    (dict(temporary_bytes=np.zeros(3)), "temporary_bytes has shape"),
    (dict(compute_us=np.ones(2)), "compute_us has shape"),
])
def test_wrong_value_is_named_with_its_place(changes, message):
  with pytest.raises(CostError, match=message):
    _costs(**changes)
