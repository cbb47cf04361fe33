"""The sweep of batch sizes and clusters: links are what it was asked for, and it goes on."""

import csv

from placeto_tf.clusters import Cluster

SWEEP = ("--models=rnnlm:layers=1:steps=2:hidden=16:vocab=20", "--batches=2,4", "--counts=2",
         "--links=slow=10,fast=1e6", "--max_evaluations=40", "--device=k80",
         "--method=placeto")


def test_it_sweeps_batches_and_links_and_takes_a_second_run_from_the_first(run_program, tmp_path):
  out = tmp_path / "sweep"
  done = run_program("benchmark_sweep", *SWEEP, f"--out={out}")
  assert done.code == 0, done.err
  slow, fast = (Cluster.load(str(out / "clusters" / f"k80_2_{name}.json"))
                for name in ("slow", "fast"))
  assert slow.bandwidth_bytes_per_us[0, 1] == 10 and fast.bandwidth_bytes_per_us[0, 1] == 1e6
  host = slow.num_devices - 1
  assert slow.devices[host].host
  assert slow.bandwidth_bytes_per_us[0, host] == fast.bandwidth_bytes_per_us[0, host] == 7600
  assert (out / "sweep.png").stat().st_size > 10_000
  table = (out / "sweep.md").read_text().splitlines()
  assert table[0] == "| model, batch | 2 slow | 2 fast |" and len(table) == 4
  assert table[2].startswith("| rnnlm:layers=1:steps=2:hidden=16:vocab=20, 2 |")
  with open(out / "results.csv", encoding="utf-8") as file:
    assert len(list(csv.DictReader(file))) == 8
  again = run_program("benchmark_sweep", *SWEEP, f"--out={out}")
  assert again.code == 0 and "[8/8]" not in again.err
  assert (out / "sweep.md").read_text().splitlines() == table
  other = run_program("benchmark_sweep", *SWEEP, "--links=slow=20", f"--out={out}")
  assert other.code == 2 and "another cluster than slow=20 makes" in other.err
