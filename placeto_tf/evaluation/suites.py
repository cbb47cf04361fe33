"""Suites of `evaluate.py --suite=NAME`, so that figures of different methods compare.

A suite fixes graphs, clusters, starts, budgets and seeds, by the names of the program's flags; its
methods are those that a new one has to beat. A suite never changes: another one gets another name.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from placeto_tf.errors import PlacetoError

SUITES: Mapping[str, Mapping[str, Any]] = {
    # Members of families that neither training nor tuning saw, on the cluster of the Placeto
    # authors. Every search begins at the best of three simple placements.
    "held_out": {
        "graphs": ["family:ptb[24]", "family:ptb[28]", "family:nmt[26]", "family:nmt[30]",
                   "family:cifar10[24]", "family:cifar10[28]"],
        "clusters": ["k80:4"],
        "methods": ["single", "expert", "metis", "m_etf", "heft", "local_search", "annealing",
                    "placeto_uniform", "placeto"],
        "start": ["single", "expert", "metis"],
        "max_evaluations": 1000,
        "budgets": ["30", "100", "300", "1000"],
        "seeds": ["0", "1", "2"]},
}


def flags_of(name: str) -> Dict[str, Any]:
  """Returns the values of a suite by the names of flags.

  Raises:
    PlacetoError: there is no such suite.
  """
  if name not in SUITES:
    raise PlacetoError(f"there is no suite {name!r}; choose one of {', '.join(sorted(SUITES))}")
  return dict(SUITES[name])
