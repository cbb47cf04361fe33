"""Imports without the garbage collector."""

import gc

import pytest

from placeto_tf.collector import no_collections


@pytest.fixture(autouse=True)
def collector_kept():
  yield
  gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_and_leaves_what_was_made_alone(enabled):
  (gc.enable if enabled else gc.disable)()
  with no_collections():
    assert not gc.isenabled()
    made = [[] for _ in range(1000)]
  assert gc.isenabled() == enabled
  assert gc.get_freeze_count() >= len(made)


def test_an_import_that_fails_leaves_the_collector_as_it_was():
  with pytest.raises(ImportError), no_collections():
    raise ImportError
  assert gc.isenabled()
