"""Draws the picture of docs/how_it_works.md: the way of a graph, with the file where each thing is.

  scripts/with_env python scripts/benchmarks/draw_how_it_works.py
"""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_string("out", "docs/pictures/how_it_works.png", "The picture.")

# (what there is, its form, where it is made) in rows, each read from left to right.
ROWS: Tuple[Tuple[Tuple[str, str, str], ...], ...] = (
    (("GraphDef", "a proto: nodes, names, attributes", "graphs/loading.py"),
     ("ComputationGraph", "N ops, E edges, colocation, kernels", "graphs/graph_defs.py"),
     ("OpCosts", "us and bytes of each op\non each kind of device", "costs/estimate.py"),
     ("Grouping", "N ops -> G groups", "grouping/api.py")),
    (("PlacementProblem", "what every placer is given", "problem/placement_problem.py"),
     ("GraphTensor", "groups and dataflow,\nwith the placement so far",
      "encoding/graph_tensor.py"),
     ("logits over devices", "the policy: where should\nthe current groups go?",
      "policies/placeto/network.py"),
     ("placement [N]", "a device for each op;\nkept if the step is shorter",
      "policies/placeto/best_first.py")),
    (("simulated step", "us, peak bytes, timeline", "simulation/event_loop.py"),
     ("Placement", "op name -> device name", "placements/placement.py"),
     ("placed GraphDef", "node.device is set", "placements/writing.py"),
     ("measured step", "real sessions on real devices", "runtime/measuring.py")),
)
_COLOURS = ("#dbe9f6", "#e4f2dc", "#fbe8d3")
_WIDTH, _HEIGHT, _STEP_X, _STEP_Y = 2.5, 1.1, 3.1, 1.8


def draw(path: str) -> None:
  """Writes the picture."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(12, 5.2), dpi=110)
  FigureCanvasAgg(figure)
  axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
  axes.set_axis_off()
  axes.set_xlim(-0.15, 3 * _STEP_X + _WIDTH + 0.15)
  axes.set_ylim(-2 * _STEP_Y - 0.15, _HEIGHT + 0.15)
  centred: Dict[str, Any] = {"ha": "center", "va": "center"}
  arrow: Dict[str, Any] = {"arrowstyle": "-|>", "color": "0.35", "linewidth": 1.4}

  def corner(row: int, column: int) -> Tuple[float, float]:
    return column * _STEP_X, -row * _STEP_Y

  for row, boxes in enumerate(ROWS):
    for column, (name, form, where) in enumerate(boxes):
      x, y = corner(row, column)
      axes.add_patch(_box(x, y, _COLOURS[row]))
      axes.text(x + _WIDTH / 2, y + 0.93, name, weight="bold", fontsize=11, **centred)
      axes.text(x + _WIDTH / 2, y + 0.54, form, fontsize=9, **centred)
      axes.text(x + _WIDTH / 2, y + 0.14, where, fontsize=8.5, family="monospace", color="0.25",
                **centred)
      if column:
        axes.annotate("", (x, y + _HEIGHT / 2), (x - _STEP_X + _WIDTH, y + _HEIGHT / 2),
                      arrowprops=arrow)
    if row:  # from the end of the row above to the start of this one
      x, y = corner(row - 1, len(boxes) - 1)
      axes.plot([x + _WIDTH / 2, x + _WIDTH / 2, _WIDTH / 2],
                [y, y - 0.35, y - 0.35], color="0.35", linewidth=1.4)
      axes.annotate("", (_WIDTH / 2, y - _STEP_Y + _HEIGHT), (_WIDTH / 2, y - 0.34),
                    arrowprops=arrow)
  # The search goes round: what was simulated is what the policy sees next.
  x, y = corner(1, 1)
  axes.annotate("", (x + 0.2, y), (_WIDTH, y - _STEP_Y + 0.85), arrowprops={
      **arrow, "linestyle": "--"})
  axes.text(x + 0.25, y - 0.52, "next moves, until the budget is spent", fontsize=9, color="0.25")
  figure.savefig(path)


def _box(x: float, y: float, colour: str):
  from matplotlib.patches import FancyBboxPatch

  return FancyBboxPatch(
      (x, y), _WIDTH, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.1", facecolor=colour,
      edgecolor="0.4")


def main(argv: Sequence[str]) -> None:
  """Draws it."""
  del argv
  draw(FLAGS.out)


if __name__ == "__main__":
  app.run(main)
