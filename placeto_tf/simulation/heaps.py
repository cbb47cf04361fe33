"""Binary heaps in arrays of compiled loops: the least (order, item) is first.

A heap of `size` entries is in orders[base:base+size] and items[base:base+size], so that several
heaps can share two arrays.
"""

from __future__ import annotations

from placeto_tf.simulation.compiling import part


@part
def push(base, size, order, item, orders, items):
  """Adds an entry to a heap.

  Args:
    base, size: of the heap before; there must be room for one more entry.
    order, item: the entry.
    orders, items: the arrays, changed in place.
  """
  # Sift up: larger parents move down.
  i = size
  while i > 0:
    above = (i - 1) // 2
    if orders[base + above] < order or (
        orders[base + above] == order and items[base + above] <= item):
      break
    orders[base + i], items[base + i] = orders[base + above], items[base + above]
    i = above
  orders[base + i], items[base + i] = order, item


@part
def pop(base, size, orders, items):
  """Removes the first entry of a heap; the last entry takes its place and sinks.

  Args:
    base, size: of the heap before, size above 0.
    orders, items: the arrays, changed in place.
  """
  item = items[base]
  orders[base], items[base] = orders[base + size - 1], items[base + size - 1]
  sink(base, size - 1, 0, orders, items)
  return item


@part
def sink(base, size, i, orders, items):
  """Moves an entry down, past smaller entries.

  Args:
    base, size: of the heap.
    i: number of the entry in the heap.
    orders, items: the arrays, changed in place.
  """
  while True:
    least = base + i
    for below in range(base + 2 * i + 1, base + min(2 * i + 3, size)):
      if orders[below] < orders[least] or (
          orders[below] == orders[least] and items[below] < items[least]):
        least = below
    if least == base + i:
      return
    orders[base + i], orders[least] = orders[least], orders[base + i]
    items[base + i], items[least] = items[least], items[base + i]
    i = least - base
