"""Fixtures of the room."""


from graph_files import cluster, graph  # noqa: F401
from small_problems import make_cluster, make_problem, random_problem, two_chains  # noqa: F401
from tracing import eagerly  # noqa: F401
