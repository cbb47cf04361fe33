"""`check_replicas`: how many replicas are trained beside the graph, and what that still catches."""

import dataclasses

import pytest
import training_constructs as constructs

from placeto_tf.errors import ReplicaMismatchError
from placeto_tf.replication import axis_rules
from placeto_tf.replication.specs import Partial, Replicated
from placeto_tf.runtime import checking
from placeto_tf.runtime.comparing import compare_training


@pytest.fixture(name="source")
def source_fixture():
  return constructs.source("sum_loss", 16)


@pytest.fixture(name="compared")
def compared_fixture(monkeypatch):
  """Numbers of replicas that were compared; each takes the seconds that are in `seconds`."""
  found = []

  def compare(graph, replicated, **options):
    found.append((replicated.strategy, replicated.global_batch))
    done = compare_training(graph, replicated, steps=1, **options)
    return dataclasses.replace(done, seconds=compare.seconds)

  compare.seconds = 0.0
  found_of = {"compared": found, "compare": compare}
  monkeypatch.setattr(checking, "compare_training", compare)
  return found_of


def test_all_replicas_of_a_small_graph_are_checked_at_once(source, compared):
  found = checking.check_replicas(source, source.replicas(4), 1000.0)
  assert found.checked and compared["compared"] == [("4", 8)]
  assert str(found).startswith("checked: 1 step")


def test_what_is_checked_is_written_as_what_is_placed(compared):
  # The best three of a batch of two are none: two examples for each replica are too few.
  source = constructs.source("hard_negatives_by_flat_index", 16)
  found = checking.check_replicas(source, source.replicas(2), 1000.0)
  assert found.checked and compared["compared"] == [("2", 8)]


@pytest.mark.parametrize("mirrored", (False, True))
def test_two_of_many_are_checked_where_all_are_dear(source, compared, monkeypatch, mirrored):
  monkeypatch.setattr(checking, "_FEW_OPS", 0)
  compared["compare"].seconds = 300.0
  found = checking.check_replicas(source, source.replicas(4, mirrored), 1000.0)
  assert compared["compared"] == [("2 mirrored" if mirrored else "2", 4)]
  assert str(found).startswith("checked with 2 of 4 replicas: 1 step, 6 variables")


def test_all_are_checked_after_two_where_there_is_time(source, compared, monkeypatch):
  monkeypatch.setattr(checking, "_FEW_OPS", 0)
  found = checking.check_replicas(source, source.replicas(4), 1000.0)
  assert [form for form, _ in compared["compared"]] == ["2", "4"]
  assert (found.replicas, found.of) == (4, 4)


def test_a_fault_of_four_replicas_shows_with_two(source, compared, monkeypatch):
  right = axis_rules.AxisRules._reduce

  def planted(self, op, kinds):
    found = right(self, op, kinds)
    return Replicated() if isinstance(found, Partial) else found

  monkeypatch.setattr(checking, "_FEW_OPS", 0)
  monkeypatch.setitem(axis_rules._RULES, "Sum", planted)
  with pytest.raises(ReplicaMismatchError):
    checking.check_replicas(source, source.replicas(4), 1000.0)
  assert [form for form, _ in compared["compared"]] == ["2"]
