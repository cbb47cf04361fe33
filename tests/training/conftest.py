"""Fixtures of the room."""

from small_problems import two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401
