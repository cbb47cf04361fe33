"""Times single kernels on an NVIDIA GPU; it needs PyTorch alone and runs without this package.

  python scripts/benchmarks/time_kernels.py kernels.json measured.json

PyTorch calls the same cuDNN and cuBLAS as TensorFlow. `gpu_kernels.py` writes kernels.json, a list
of {"op": one of OPS, "shapes": [[...], ...], "strides": [h, w], "padding": "SAME" | "VALID"},
shapes as TensorFlow has them (NHWC, HWIO): Conv2D and its gradients [input, filter]; MatMul and
BatchMatMul [a, b]; AddV2 and Mul [a, b]; the others [input].

measured.json: {"machine": launch of a small kernel in us, bytes a us of copies; "kernels": the same
list with "float32_us", "tf32_us" and "bfloat16_us", the median of 15 replays of a CUDA graph of 10
calls, over 10, without launches; null where a kernel failed}. Inputs are in the L2 cache as far as
they fit.
"""

import json
import statistics
import sys
import time

import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
_CALLS, _REPLAYS = 10, 15
_ELEMENTWISE = {
    "Relu": torch.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid,
    "Softmax": lambda x: torch.softmax(x, -1), "AddV2": torch.add, "Mul": torch.mul,
    "MatMul": torch.matmul, "BatchMatMul": torch.matmul}


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
  arrays = [torch.randn(shape, device=DEVICE, dtype=dtype) for shape in kernel["shapes"]]
  op = kernel["op"]
  if op in _ELEMENTWISE:
    return lambda: _ELEMENTWISE[op](*arrays)
  x = arrays[0].permute(0, 3, 1, 2)  # [N, C, H, W], in the memory of NHWC
  if op == "MaxPool":
    return lambda: torch.nn.functional.max_pool2d(x, 3, 2)
  if op.startswith("FusedBatchNorm"):
    scale, shift = (torch.ones(x.shape[1], device=DEVICE) for _ in range(2))
    if op == "FusedBatchNorm":
      return lambda: torch.nn.functional.batch_norm(x, None, None, scale, shift, True)
    out, mean, inverse = torch.ops.aten.native_batch_norm(
        x, scale, shift, None, None, True, 0.1, 1e-3)
    gradient = torch.ones_like(out)
    return lambda: torch.ops.aten.native_batch_norm_backward(
        gradient, x, scale, None, None, mean, inverse, True, 1e-3, [True] * 3)
  weights = arrays[1].permute(3, 2, 0, 1)  # [O, I, H, W]
  strides, pads = kernel["strides"], [0, 0]
  if kernel["padding"] == "SAME":
    pads = [max(0, (size - 1) // stride * stride + width - size + 1) // 2 for size, stride, width
            in zip(x.shape[2:], strides, weights.shape[2:])]
  out = torch.nn.functional.conv2d(x, weights, stride=strides, padding=pads)
  if op == "Conv2D":
    return lambda: torch.nn.functional.conv2d(x, weights, stride=strides, padding=pads)
  wanted = [op.endswith("Input"), op.endswith("Filter"), False]
  return lambda: torch.ops.aten.convolution_backward(
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
  found = {"machine": machine(), "kernels": kernels}
  for kernel in kernels:
    for name, dtype, tf32 in (
        ("float32_us", torch.float32, False), ("tf32_us", torch.float32, True),
        ("bfloat16_us", torch.bfloat16, False)):
      torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
      try:
        kernel[name] = kernel_us(call_of(kernel, dtype))
      except Exception as error:  # one kernel does not end the others
        kernel[name], kernel["error"] = None, f"{type(error).__name__}: {error}"[:200]
    print(kernel, flush=True)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
      json.dump(found, file, indent=1)


if __name__ == "__main__":
  main()
