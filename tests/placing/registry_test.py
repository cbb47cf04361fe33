"""Methods that are there, and defaults that depend on other options."""

import pytest

import subprograms
from placeto_tf.errors import PlacementError
from placeto_tf.placing import config as config_module
from placeto_tf.placing import registry
from placeto_tf.placing.config import MOST_DEFAULT_RUNS, PlacingConfig


def test_auto_and_the_references_are_listed_first():
  assert registry.names()[:5] == ("auto", "current", "single", "expert", "metis")
  assert [method.name for method in registry.references()] == list(registry.names()[1:5])


def test_auto_runs_references_constructions_the_policy_and_annealing():
  constructed = ["current", "single", "expert", "metis", "m_etf", "heft", "metis_groups"]
  policy = registry.search_of_auto().name
  assert [method.name for method in registry.parts_of_auto()] == [
      *constructed, policy, "annealing"]
  assert [method.name for method in registry.parts_of_auto(learned=False)] == [
      *constructed, "annealing"]
  assert not any(method.in_tensorflow for method in registry.parts_of_auto())


def test_every_method_can_be_loaded_and_run_as_one():
  for method in registry.methods(controls=True):
    assert callable(method.load()), method.name


@pytest.mark.parametrize("wrong, near", [
    ("anealing", "annealing"), ("metis_group", "metis_groups"), ("Placeto", "placeto")])
def test_an_unknown_name_is_answered_with_near_ones_and_the_list(wrong, near):
  with pytest.raises(PlacementError, match=f"'{wrong}' is not known; did you mean .*{near}.*"
                                           "The methods are auto, .*hierarchical"):
    registry.find(wrong)
  with pytest.raises(PlacementError, match="expected one of auto, "):
    registry.find("zzzzz")


def test_controls_are_run_by_name_or_beside_their_methods_and_in_no_list():
  named = registry.with_controls(["single", "placeto", "placeto_uniform"])
  assert named == ("single", "placeto", "placeto_untrained", "placeto_uniform")
  assert not set(named[2:]) & set(registry.names())
  assert registry.find("placeto_uniform").control_of == ("placeto",)


def test_listing_methods_imports_nothing_heavy():
  code = ("import sys; from placeto_tf.placing import registry; registry.methods(); "
          "print([name for name in ('tensorflow', 'tf_agents', 'tensorflow_gnn', 'tf_keras', "
          "'keras') if name in sys.modules])")
  assert subprograms.python("-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("cores, options, independent_runs", [
    (1, {}, 1), (3, {}, 3), (3, {"max_seconds": 5}, 3), (1000, {}, MOST_DEFAULT_RUNS),
    (3, {"max_evaluations": 100}, 1), (3, {"max_evaluations": 100, "max_seconds": 5}, 1),
    (3, {"independent_runs": 5}, 5), (3, {"max_evaluations": 100, "independent_runs": 2}, 2)])
def test_runs_are_as_many_as_cores_unless_evaluations_are_the_limit(
    monkeypatch, cores, options, independent_runs):
  monkeypatch.setattr(config_module, "num_cores", lambda: cores)
  assert PlacingConfig(**options).num_runs == independent_runs
