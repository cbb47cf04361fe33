import hypothesis
import hypothesis.strategies as st
import pytest
from properties import examples
from random_cases import make_cluster, make_costs, random_case, random_extensions

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.simulation.memory import KINDS, Lifetimes, memory_report
from placeto_tf.simulation.simulator import Simulator


@examples(300)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), extended=st.booleans())
def test_lifetimes_add_up_to_the_peaks_of_the_event_loop(seed, extended):
  graph, costs, cluster, placements = random_case(
      seed, max_ops=25, **(random_extensions(seed) if extended else {}))
  result = Simulator(graph, costs, cluster, num_threads=1).simulate(placements[0])
  lifetimes = Lifetimes.of(graph, costs, result)
  for d in range(cluster.num_devices):
    peak_bytes = lifetimes.usage(d)[1].max()
    assert peak_bytes == pytest.approx(result.peak_memory_bytes[d])
    _, alive = lifetimes.at_peak(d)
    assert lifetimes.sizes_bytes[alive].sum() == pytest.approx(peak_bytes)


def over_full_case():
  # big@0-1 holds 3 GB of output and 1.5 GB of persistent bytes on /GPU:0, which has 2; its output
  # is copied to /GPU:1, which has 2 as well, and consumed there by small (0.25 GB temporary).
  gb = 2**30
  graph = ComputationGraph.from_edges(["big", "small"], ["X"] * 2, [1, 1], [(0, 0, 1)])
  costs = make_costs(
      [1, 1], [3 * gb, 1000], persistent=[1.5 * gb, 0], temporary=[0, 0.25 * gb])
  return graph, costs, make_cluster(2, memory=2 * gb, bandwidth=float(gb))


def test_what_was_held_at_the_peak_is_listed_the_largest_first():
  graph, costs, cluster = over_full_case()
  lifetimes = Lifetimes.of(graph, costs, Simulator(graph, costs, cluster).simulate([0, 1]))

  def held(device):
    moment_us, alive = lifetimes.at_peak(device)
    return moment_us, [
        (graph.op_names[lifetimes.ops[k]], KINDS[lifetimes.kinds[k]]) for k in alive]

  assert held(0) == (0.0, [("big", "output"), ("big", "persistent")])
  assert held(1) == (4.0, [("big", "copy"), ("small", "temporary"), ("small", "output")])


def test_report_says_which_device_is_out_of_memory_and_by_how_much():
  graph, costs, cluster = over_full_case()
  assert memory_report(graph, costs, Simulator(graph, costs, cluster).simulate([0, 1])) == [
      "out of memory on /GPU:0 by 2.5 GiB (4.5 GiB at 0 us, 2.0 GiB there; largest: big output "
      "3.0 GiB, big persistent 1.5 GiB)",
      "out of memory on /GPU:1 by 1.3 GiB (3.3 GiB at 4 us, 2.0 GiB there; largest: "
      "big copy 3.0 GiB, small temporary 0.2 GiB, small output 1.0 KiB)"]
