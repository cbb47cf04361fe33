import pytest

from placeto_tf.costs.estimate import work_of
from placeto_tf.costs.look import looking
from placeto_tf.errors import PlacetoError
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


def test_the_table_takes_the_place_between_the_markers_of_the_page(load_program):
  program = load_program("loop_graphs")
  begin, end = program._BEGIN, program._END
  for between in ("", "\n", "\n| old |\n\n"):  # both markers may stand on one line
    found = program.with_table(f"before {begin}{between}{end} after", "| new |\n")
    assert found == f"before {begin}\n| new |\n{end} after"
    assert program.with_table(found, "| new |\n") == found
  for page in ("", begin, end, end + begin):
    with pytest.raises(PlacetoError, match="no place for the table"):
      program.with_table(page, "| new |\n")
