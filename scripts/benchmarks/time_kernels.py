"""Times single kernels on an NVIDIA GPU; it needs PyTorch alone and runs without this package.

  python scripts/benchmarks/time_kernels.py kernels.json measured.json

PyTorch calls the same cuDNN and cuBLAS as TensorFlow. `gpu_kernels.py` writes kernels.json, a list
of {"op": TensorFlow's op type, "shapes": of the inputs, "out": shape of the output}, shapes as
TensorFlow has them (NHWC, HWIO; Conv2D and its gradients [input, filter], gradients of pooling and
batch norm [input]), with "window", "strides" and "padding" where the op has them.

measured.json: {"machine": launch of a small kernel in us, bytes a us of copies; "kernels": the same
list with "tf32_us" (float32, whose products are TF32) and "bfloat16_us", the median of 9 replays of
a CUDA graph of 10 calls, over 10, without launches; null where a kernel failed}. Inputs are in the
L2 cache as far as they fit.
"""

import functools
import json
import math
import statistics
import sys
import time

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
_CALLS, _REPLAYS = 10, 9
_ATEN = torch.ops.aten
# Op type -> a function of its inputs.
_PLAIN = {
    "Relu": torch.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Neg": torch.neg,
    "Log": torch.log, "Softmax": lambda x: torch.softmax(x, -1),
    "L2Loss": torch.linalg.vector_norm,
    "Add": torch.add, "AddN": torch.add, "BiasAdd": torch.add, "Sub": torch.sub,
    "Mul": torch.mul, "RealDiv": torch.div, "Greater": torch.gt, "Pow": torch.pow,
    "Select": torch.where,
    "ReluGrad": lambda x, y: _ATEN.threshold_backward(x, y, 0),
    "TanhGrad": _ATEN.tanh_backward, "SigmoidGrad": _ATEN.sigmoid_backward,
    "MatMul": torch.matmul, "BatchMatMul": torch.matmul,
    "BiasAddGrad": lambda x: x.sum(tuple(range(x.ndim - 1)))}


def kernel_us(run):
  """Returns the time of one call, by a CUDA graph of several; on a CPU by the clock."""
  if not CUDA:
    run()
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e6
  stream = torch.cuda.Stream()
  with torch.cuda.stream(stream):  # warm-up beside the default stream, as capturing asks for
    for _ in range(3):
      run()
  torch.cuda.synchronize()
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph):
    for _ in range(_CALLS):
      run()
  found = []
  for _ in range(_REPLAYS):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    found.append(start.elapsed_time(end) * 1e3 / _CALLS)
  return statistics.median(found)


def call_of(kernel, dtype):
  """Returns a function that runs the kernel on random tensors."""
  op, shapes, out = kernel["op"], kernel["shapes"], kernel["out"]
  arrays = [torch.rand(shape, device=DEVICE).add_(0.1).to(dtype) for shape in shapes]
  if op == "Select":
    arrays[0] = arrays[0] > 0.5
  if op in _PLAIN:
    return functools.partial(_PLAIN[op], *arrays)
  if "window" in kernel or op.startswith(("Conv2D", "FusedBatchNorm")):
    return _of_images(kernel, *arrays)
  found = _rearranged(op, out, arrays)
  return found if found is not None else _of_rows(op, out, arrays)


def _rearranged(op, out, arrays):
  """Returns a function that moves or adds up elements, None for another op."""
  x = arrays[0] if arrays else torch.zeros([], device=DEVICE)
  # Axes in which input and output differ; sums may have dropped theirs.
  differs = [i for i, (a, b) in enumerate(zip(x.shape, out)) if a != b]
  if op in ("Sum", "Mean"):
    axes, kept = [], list(out)
    for axis in reversed(range(x.ndim)):  # what is kept is matched from the last axis on
      if kept and kept[-1] == x.shape[axis]:
        kept.pop()
      else:
        axes.append(axis)
        if len(out) == x.ndim:
          kept.pop()
    return lambda: torch.sum(x, axes)
  if op == "Transpose":
    axes = []
    for size in out:  # of equal sizes the last axis comes first, so that elements move
      axes.append(max(i for i in range(x.ndim) if x.shape[i] == size and i not in axes))
    return lambda: x.permute(axes).contiguous()
  if op == "Concat":
    return lambda: torch.cat(arrays, differs[0])
  if op == "Split":
    axis = differs[0]
    parts = [torch.empty(out, device=DEVICE, dtype=x.dtype)
             for _ in range(x.shape[axis] // out[axis])]
    return lambda: torch.split_with_sizes_copy(x, [out[axis]] * len(parts), axis, out=parts)
  if op in ("Slice", "StridedSlice"):
    part = x[tuple(slice(size) for size in out)]
    return lambda: part.clone(memory_format=torch.contiguous_format)
  if op in ("Pad", "StridedSliceGrad"):
    widths = [width for a, b in zip(x.shape[::-1], out[::-1]) for width in (0, b - a)]
    return lambda: torch.nn.functional.pad(x, widths)
  if op == "Tile":
    wide = x.expand(out) if all(x.shape[i] == 1 for i in differs) else None
    return wide.contiguous if wide is not None else functools.partial(
        x.repeat, *(b // a for a, b in zip(x.shape, out)))
  if op == "Fill":
    return lambda: torch.full(out, 0.5, device=DEVICE, dtype=x.dtype)
  return None


def _of_rows(op, out, arrays):
  """Returns a function for losses, lookups, optimizers and random numbers."""
  x = arrays[0] if arrays else torch.zeros([], device=DEVICE)
  if op == "RandomUniform":
    return lambda: torch.rand(out, device=DEVICE, dtype=x.dtype)
  if op == "SparseSoftmaxCrossEntropyWithLogits":  # the loss and its gradient
    labels = torch.randint(x.shape[1], [len(x), 1], device=DEVICE)
    less = torch.full([len(x), 1], -1.0, device=DEVICE, dtype=x.dtype)

    def loss():
      logarithms = torch.log_softmax(x, 1)
      return logarithms.gather(1, labels), logarithms.exp().scatter_add_(1, labels, less)
    return loss
  if op == "ResourceApplyMomentum":  # two element-wise kernels, as in TensorFlow
    variable, slot = torch.ones_like(x), torch.ones_like(x)
    return lambda: (torch.add(x, slot, alpha=0.9, out=slot), variable.add_(slot, alpha=-0.01))
  # Rows of a table, [vocabulary, width]; the other input or the output has as many as are used.
  rows = arrays[1] if op.startswith("ResourceSparse") else None
  count = len(rows) if rows is not None else math.prod(out[:-1])
  indices = torch.randint(len(x), [count], device=DEVICE)
  if op in ("ResourceGather", "Gather"):
    return lambda: x.index_select(0, indices)
  if op == "ResourceSparseApplyMomentum":
    slot = torch.ones_like(x)
    return lambda: (slot.index_add_(0, indices, rows), x.index_add_(0, indices, rows))
  raise ValueError(f"{op} is not timed")


def _of_images(kernel, x, weights=None):
  """Returns a function for convolutions, pooling and batch norm, of tensors in NHWC and HWIO."""
  op = kernel["op"]
  x = x.permute(0, 3, 1, 2)  # [N, C, H, W], in the memory of NHWC
  if op.startswith("FusedBatchNorm"):
    scale, shift = (torch.ones(x.shape[1], device=DEVICE) for _ in range(2))
    if op == "FusedBatchNorm":
      return lambda: torch.nn.functional.batch_norm(x, None, None, scale, shift, True)
    out, mean, inverse = _ATEN.native_batch_norm(x, scale, shift, None, None, True, 0.1, 1e-3)
    gradient = torch.ones_like(out)
    return lambda: _ATEN.native_batch_norm_backward(
        gradient, x, scale, None, None, mean, inverse, True, 1e-3, [True] * 3)
  window = kernel["window"] if weights is None else list(weights.shape[:2])
  strides, pads = kernel["strides"], [0, 0]
  if kernel["padding"] == "SAME":
    pads = [max(0, (size - 1) // stride * stride + width - size + 1) // 2
            for size, stride, width in zip(x.shape[2:], strides, window)]
  if op.startswith("MaxPool"):
    out, indices = _ATEN.max_pool2d_with_indices(x, window, strides, pads)
    gradient = torch.ones_like(out)
    if op == "MaxPool":
      return lambda: torch.nn.functional.max_pool2d(x, window, strides, pads)
    return lambda: _ATEN.max_pool2d_with_indices_backward(
        gradient, x, window, strides, pads, [1, 1], False, indices)
  if op.startswith("AvgPool"):
    rest = (window, strides, pads, False, False)  # borders do not count
    gradient = torch.ones_like(_ATEN.avg_pool2d(x, *rest))
    if op == "AvgPool":
      return lambda: _ATEN.avg_pool2d(x, *rest)
    return lambda: _ATEN.avg_pool2d_backward(gradient, x, *rest, None)
  weights = weights.permute(3, 2, 0, 1)  # [O, I, H, W]
  out = torch.nn.functional.conv2d(x, weights, stride=strides, padding=pads)
  if op == "Conv2D":
    return lambda: torch.nn.functional.conv2d(x, weights, stride=strides, padding=pads)
  wanted = [op.endswith("Input"), op.endswith("Filter"), False]
  return lambda: _ATEN.convolution_backward(
      out, x, weights, None, strides, pads, [1, 1], False, [0, 0], 1, wanted)


def machine():
  """Returns the card, the launch of a small kernel and the speed of copies."""
  small, count = torch.ones(64, device=DEVICE), 2000
  for timed in (False, True):
    begin = time.perf_counter()
    for _ in range(count):
      small = small + 1
    if CUDA:
      torch.cuda.synchronize()
    launch_us = (time.perf_counter() - begin) / count * 1e6 if timed else 0.0
  size = 64 * 2**20
  host = torch.ones(size, dtype=torch.uint8, pin_memory=CUDA)
  there = host.to(DEVICE)
  return {"name": torch.cuda.get_device_name() if CUDA else "cpu", "torch": torch.__version__,
          "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
          "launch_us": launch_us,
          "host_to_device": size / kernel_us(lambda: there.copy_(host, non_blocking=True)),
          "device_to_host": size / kernel_us(lambda: host.copy_(there, non_blocking=True)),
          "on_device": 2 * size / kernel_us(there.clone)}


def main():
  """Times all kernels; what was timed is kept after each."""
  with open(sys.argv[1], encoding="utf-8") as file:
    kernels = json.load(file)
  torch.backends.cudnn.benchmark = True  # as TensorFlow, which tries cuDNN's algorithms
  torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
  found = {"machine": machine(), "kernels": []}
  for kernel in kernels:
    for name, dtype in (("tf32_us", torch.float32), ("bfloat16_us", torch.bfloat16)):
      try:
        kernel[name] = kernel_us(call_of(kernel, dtype))
      except Exception as error:  # one kernel does not end the others
        kernel[name], kernel["error"] = None, f"{name}: {type(error).__name__}: {error}"[:300]
    found["kernels"].append(kernel)
    print({name: kernel.get(name) for name in (
        "op", "shapes", "tf32_us", "bfloat16_us", "error")}, flush=True)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
      json.dump(found, file, indent=1)


if __name__ == "__main__":
  main()
