import pytest

from placeto_tf.costs.estimate import work_of
from placeto_tf.costs.look import looking
from placeto_tf.graphs import load_graph

_GRAPHS = ("ragged", "nested_loops", "transformer_decoder", "cond_batch_norm")


def test_a_look_knows_what_inference_does_not_of_graphs_with_loops(run_program, tmp_path):
  done = run_program("loop_graphs", f"--out={tmp_path}", f"--graphs={','.join(_GRAPHS)}")
  assert done.code == 0, done.err
  works = {}
  for name in _GRAPHS:
    graph = load_graph(str(tmp_path / f"{name}.meta"))
    for mode in ("no", "auto"):
      with looking(mode):
        works[name, mode] = work_of(graph, cache=False)
    assert not works[name, "auto"].unknown
  moved = {key: (work.moved_bytes * work.executions).sum() for key, work in works.items()}
  assert works["ragged", "no"].unknown and moved["ragged", "auto"] > 5 * moved["ragged", "no"]
  # Fixed points are found in fewer rounds than are allowed; a cache grows from nothing.
  assert moved["nested_loops", "auto"] < 0.5 * moved["nested_loops", "no"]
  assert moved["transformer_decoder", "auto"] > 1.2 * moved["transformer_decoder", "no"]
  # Of each conditional one side runs.
  assert moved["cond_batch_norm", "auto"] == pytest.approx(moved["cond_batch_norm", "no"])


def test_what_was_measured_is_kept_and_written_into_the_page(load_program, monkeypatch, tmp_path):
  program = load_program("loop_graphs")
  page = tmp_path / "page.md"
  page.write_text(f"before\n{program._BEGIN}old{program._END}\nafter\n")
  measured = []

  def rows_of(path):
    name = path.rsplit("/", 1)[1][:-len(".meta")]
    measured.append(name)
    return [{"graph": name, "placement": method, "predicted_us": 1100.0 + k, "measured_us": 1000.0,
             "error": 0.1 * (k + 1)} for k, method in enumerate(program._METHODS)]

  monkeypatch.setattr(program, "predicted_and_measured", rows_of)
  for graphs in ("ragged", "ragged,fcn"):
    program.FLAGS([
        "loop_graphs", f"--out={tmp_path}", f"--graphs={graphs}", "--measure", f"--page={page}"])
    program.main()
  assert measured == ["ragged", "fcn"]  # what was measured before is left out
  lines = page.read_text().splitlines()
  assert (lines[0], lines[-1]) == ("before", "after") and "old" not in lines
  assert "| fcn | 1.10, 1.00 | 1.10, 1.00 | 1.10, 1.00 | 30% |" in lines
  assert "Median error 20.0%, largest 30.0%, of 6 placements." in lines
