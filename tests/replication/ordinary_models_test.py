"""Models that people have are trained by their replicas as by themselves.

`ordinary_models.py` is the program that makes the table of `docs/replicating_graphs.md`.
"""

import pytest

import ordinary_models
import subprograms
from placeto_tf.errors import GraphError

SMALL = [name for name in (*ordinary_models.MODELS, *ordinary_models.GRAPHS)
         if name not in ordinary_models.APPLICATIONS
         and name.partition("_")[0] not in ordinary_models.LIBRARIES]
# XLA compiles its grouped convolution, as a function that is not looked into.
REFUSED = {("ConvNeXtTiny", "free"): "PartitionedCall", ("ConvNeXtTiny", "fixed"): "baked into"}
CASES = [pytest.param(name, way, replicas, mirrored, marks=marks)
         for names, small in ((SMALL, True), (ordinary_models.APPLICATIONS, False))
         for name, way, replicas, mirrored in ordinary_models.wanted("2", names)
         for marks in [[] if small and (replicas, mirrored) == (2, False) and way == "free" else [
             pytest.mark.heavy]]]


@pytest.mark.parametrize("name, way, replicas, mirrored", CASES)
def test_a_models_replicas_train_what_it_trains(name, way, replicas, mirrored):
  keras = subprograms.the_keras("2")
  keras.backend.clear_session()
  keras.backend.set_floatx("float32")
  if (name, way) in REFUSED:
    with pytest.raises(GraphError, match=REFUSED[name, way]):
      ordinary_models.compared(keras, name, way, replicas, mirrored)
    return
  _, said, found = ordinary_models.compared(keras, name, way, replicas, mirrored)
  assert said.startswith(("exact", "replica's own statistics"))
  if found is not None:  # a batch that is part of the shapes may have had to grow
    assert found.checked and found.variables > 0
