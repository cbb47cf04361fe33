"""The small graph that tests of measurements run."""

from measured_case import cluster_fixture, graph_fixture, halves_fixture, single_fixture  # noqa: F401
