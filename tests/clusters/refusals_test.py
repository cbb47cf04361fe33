"""Clusters that cannot be, and the words that say so."""

import numpy as np
import pytest

from placeto_tf.clusters import Cluster, Device, local
from placeto_tf.errors import ClusterError

DEVICES = (Device("/GPU:0", "GPU", 2**30), Device("/GPU:1", "GPU", 2**30))


@pytest.mark.parametrize("call, words", [
    (lambda: Cluster((), np.zeros((0, 0)), np.zeros((0, 0))), "zero devices"),
    (lambda: Cluster(DEVICES, np.ones((2, 2)), np.ones((3, 3))),
     r"latency_us has shape \[3, 3\], expected \[2, 2\]"),
    (lambda: Cluster(**local.from_properties([])), "finds no CPU or GPU"),
    (lambda: Cluster.load("missing.json"), "No such file"),
    (lambda: Cluster.parse("cpu:1").save("missing/cluster.json"), "cannot write"),
])
def test_what_is_no_cluster_is_named(call, words):
  with pytest.raises(ClusterError, match=words):
    call()
