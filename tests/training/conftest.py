"""Fixtures of the folder."""

from small_problems import two_chains  # noqa: F401
from tracing import eager_module, eagerly  # noqa: F401
