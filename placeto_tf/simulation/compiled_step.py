"""One simulated step for other compiled loops, by the event loop that the cluster needs."""

from __future__ import annotations

import numpy as np

from placeto_tf.simulation import event_loop, extended_loop
from placeto_tf.simulation.compiling import part


@part
def simulate_step(placements, arguments, start_us, step_time_us, peak_bytes):
  """Simulates placements[0]; see `event_loop.simulate_range`.

  Args:
    placements: [B, N] int32; the first row is simulated.
    arguments: of an engine, `engine.arguments(workspace)`. The length of the tuple selects the
      event loop; the compiler leaves the other loop out.
    start_us: [B, N] float64, or [1, N]; the first row is filled.
    step_time_us: [B] float64; the first entry is filled.
    peak_bytes: [B, D] float64; the first row is filled.
  """
  first = np.int64(0)  # numba would compile the whole loop once more for the literals 0 and 1
  if len(arguments) == 2:
    event_loop.simulate_range(
        placements, first, first + 1, arguments[0], arguments[1], start_us, step_time_us,
        peak_bytes)
  else:
    extended_loop.simulate_range(
        placements, first, first + 1, arguments[0], arguments[1], arguments[2], start_us,
        step_time_us, peak_bytes)
