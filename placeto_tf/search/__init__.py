"""Placers that do not learn, and the bounds that every placer is held against.

Each placer is a function `(problem, budget=None, seed=0) -> [N] int32`, the device of each op in
the best placement it found; it evaluates through the problem, so that budgets are counted alike.
"""

from types import MappingProxyType

from placeto_tf.problem.ledger import Contribution, Ledger, Placer
from placeto_tf.problem.placement_problem import Budget, Evaluation, PlacementProblem
from placeto_tf.search.annealing import annealing
from placeto_tf.search.baechi import m_etf, m_etf_links, m_sct, m_sct_links, m_topo
from placeto_tf.search.exact import ExactResult, exact, prove
from placeto_tf.search.expert import expert, expert_fewer
from placeto_tf.search.genetic import genetic
from placeto_tf.search.heft import heft, heft_links
from placeto_tf.search.local_search import local_search
from placeto_tf.search.lower_bounds import lower_bound_us
from placeto_tf.search.metis import metis
from placeto_tf.search.refinement import refine
from placeto_tf.search.simple import current, random, single
from placeto_tf.search.starts import best_start

METHODS = MappingProxyType({
    "current": current,
    "single": single,
    "expert": expert,
    "expert_fewer": expert_fewer,
    "metis": metis,
    "random": random,
    "m_topo": m_topo,
    "m_etf": m_etf,
    "m_etf_links": m_etf_links,
    "m_sct": m_sct,
    "m_sct_links": m_sct_links,
    "heft": heft,
    "heft_links": heft_links,
    "local_search": local_search,
    "annealing": annealing,
    "genetic": genetic,
    "refine": refine,
    "exact": exact,
})

__all__ = [
    "METHODS",
    "Budget",
    "Contribution",
    "Evaluation",
    "ExactResult",
    "Ledger",
    "PlacementProblem",
    "Placer",
    "annealing",
    "best_start",
    "current",
    "exact",
    "expert",
    "expert_fewer",
    "genetic",
    "heft",
    "heft_links",
    "local_search",
    "lower_bound_us",
    "m_etf",
    "m_etf_links",
    "m_sct",
    "m_sct_links",
    "m_topo",
    "metis",
    "prove",
    "random",
    "refine",
    "single",
]
