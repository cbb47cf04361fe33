"""Tests for placeto_tf.costs.cache."""

import os

import numpy as np
import pytest

from placeto_tf import graphs
from placeto_tf.costs import cache
from placeto_tf.costs.work import count_work


@pytest.fixture(name="entry")
def entry_fixture(training_graph, tmp_path):
  """(folder, key, work) of an entry that was stored."""
  graph = training_graph()
  graph_def = graphs.analysis_graph_def(graph)
  work = count_work(graph, graph_def)
  folder, key = str(tmp_path / "costs"), cache.key_of(graph, graph_def)
  cache.store(folder, key, work)
  return folder, key, work


def test_entry_is_read_back_whole(entry):
  folder, key, work = entry
  found = cache.load(folder, key)
  for name in ("flops", "moved_bytes", "launches", "launches_on_gpu", "temporary_bytes",
               "persistent_bytes", "output_bytes"):
    np.testing.assert_array_equal(getattr(found, name), getattr(work, name))
    assert getattr(found, name).dtype == getattr(work, name).dtype
  assert found.notes == work.notes
  assert [name for name in os.listdir(folder) if not name.endswith(".work")] == []


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:100], lambda content: b"x" * 1000,
    lambda content: content[:-30] + b"\0" * 30])
def test_damaged_entry_counts_as_missing(entry, damage):
  folder, key, _ = entry
  path = os.path.join(folder, os.listdir(folder)[0])
  with open(path, "rb") as file:
    content = file.read()
  with open(path, "wb") as file:
    file.write(damage(content))
  assert cache.load(folder, key) is None


def test_key_changes_with_shapes_but_not_from_one_loading_to_the_next(training_graph):
  def key(batch):
    graph = training_graph(batch)
    return cache.key_of(graph, graphs.analysis_graph_def(graph))

  assert key(16) == key(16)
  assert key(16) != key(17)


def test_entries_used_longest_ago_are_removed(entry, monkeypatch):
  folder, key, work = entry
  monkeypatch.setattr(cache, "_MAX_ENTRIES", 3)
  for age, name in enumerate(("new", "old", "oldest"), start=1):
    cache.store(folder, name, work)
    os.utime(os.path.join(folder, name + ".work"), (age * -1000 + 10**9,) * 2)
  cache.store(folder, "newest", work)
  assert cache.load(folder, "oldest") is None
  assert cache.load(folder, "newest") is not None
  assert len(os.listdir(folder)) == 3
