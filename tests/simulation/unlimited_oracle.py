"""The model of GiPH's and DOPPLER's simulators in plain Python, with nothing of the other oracles.

An op starts when all its inputs have arrived and its device is free; a device takes ops in the
order in which they became ready. A tensor arrives on another device latency + bytes / bandwidth
after its producer has ended, however many are on their way. There is no overhead.
"""


def step_time_us(graph, compute_us, output_bytes, bandwidth, latency, placement):
  """Step time of a placement; arguments are arrays, compute_us [N] of each op where it is."""
  inputs = [[] for _ in range(graph.num_ops)]
  for u, port, v in zip(graph.edge_producers, graph.edge_ports, graph.edge_consumers):
    size = 0.0 if port < 0 else output_bytes[graph.output_offsets[u] + port]
    inputs[v].append((u, port, size))
  ends = {}
  free = dict.fromkeys(placement, 0.0)

  def ready(op):
    """When the last input arrives; of one instant, those of producers that come first, first."""
    found = (0.0, -1, -1)
    for u, port, size in inputs[op]:
      a, b = placement[u], placement[op]
      # In this order, as rounding decides what comes first.
      arrives = ends[u] if a == b else ends[u] + size / bandwidth[a, b] + latency[a, b]
      found = max(found, (arrives, u, port))
    return found

  # Of the ops whose inputs are all known, the one that starts next, and then by readiness, goes on:
  # nothing that is found later can be ready before it.
  while len(ends) < graph.num_ops:
    known = [op for op in range(graph.num_ops) if op not in ends
             and all(u in ends for u, _, _ in inputs[op])]
    begin = {op: (max(ready(op)[0], free[placement[op]]), ready(op)) for op in known}
    op = min(known, key=lambda op: begin[op])
    ends[op] = begin[op][0] + compute_us[op]
    free[placement[op]] = ends[op]
  return max(ends.values())
