"""Fixtures of the folder."""

from small_problems import make_cluster, make_problem, random_problem, sixty_ops  # noqa: F401
