"""How properties are tested: on the same examples each time, however long they take."""

import hypothesis


def examples(count):
  return hypothesis.settings(
      max_examples=count, deadline=None, derandomize=True, database=None,
      suppress_health_check=[hypothesis.HealthCheck.too_slow])
