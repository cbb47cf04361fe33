"""Times whole training steps on an NVIDIA GPU; it needs PyTorch alone, as `time_kernels.py` does.

  python scripts/benchmarks/time_steps.py steps.json

The models are those of the zoo, of plain ops whose kernels are launched one by one (no fused
attention, LSTM or optimizer; one update a variable), float32 with products in TF32. steps.json:
{"steps": [{"graph": the spec of the zoo, "wall_us": median by the clock, "busy_us": sum of the
durations of all kernels in PyTorch's profiler, "kernels": their number, "by_kernel": the longest
kernels, each with its number and us}]}, all for one step. On a CPU the sizes are tiny.
"""

import collections
import json
import math
import statistics
import sys
import time

import torch
from torch.nn import functional

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def weight(*shape):
  """Returns a trainable random tensor."""
  return (torch.randn(shape, device=DEVICE) / math.sqrt(shape[0])).requires_grad_()


def perceptron(batch):
  """Returns (weights, loss) of 784-512-10."""
  images, labels = torch.rand(batch, 784, device=DEVICE), torch.randint(
      10, [batch], device=DEVICE)
  weights = [weight(784, 512), weight(512), weight(512, 10), weight(10)]

  def loss():
    hidden = torch.relu(images @ weights[0] + weights[1])
    return functional.cross_entropy(hidden @ weights[2] + weights[3], labels)
  return weights, loss


def resnet50(batch, image=224):
  """Returns (weights, loss) of ResNet-50, whose convolutions have biases as those of Keras."""
  images = torch.rand(batch, 3, image, image, device=DEVICE).contiguous(
      memory_format=torch.channels_last)
  labels = torch.randint(1000, [batch], device=DEVICE)
  weights = []

  def layer(inputs, outputs, width, stride=1):
    filters = weight(outputs, inputs, width, width).detach().contiguous(
        memory_format=torch.channels_last).requires_grad_()
    own = [filters, *(weight(outputs) for _ in range(3))]
    weights.extend(own)

    def run(x):
      x = functional.conv2d(x, own[0], own[1], stride, width // 2)
      return functional.batch_norm(x, None, None, own[2], own[3], True)
    return run

  first, blocks, inputs = layer(3, 64, 7, 2), [], 64
  for filters, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
    for i in range(count):
      step = stride if i == 0 else 1
      blocks.append((layer(inputs, filters, 1, step), layer(filters, filters, 3),
                     layer(filters, 4 * filters, 1),
                     layer(inputs, 4 * filters, 1, step) if i == 0 else None))
      inputs = 4 * filters
  head = [weight(2048, 1000), weight(1000)]
  weights.extend(head)

  def loss():
    x = functional.max_pool2d(torch.relu(first(images)), 3, 2, 1)
    for reduce, middle, expand, shortcut in blocks:
      inner = expand(torch.relu(middle(torch.relu(reduce(x)))))
      x = torch.relu(inner + (x if shortcut is None else shortcut(x)))
    return functional.cross_entropy(x.mean((2, 3)) @ head[0] + head[1], labels)
  return weights, loss


def bert(batch, layers=12, steps=128, vocab=30522):
  """Returns (weights, loss) of BERT of width 768 with 20 masked words, without dropout."""
  words = torch.randint(vocab, [batch * steps], device=DEVICE)
  masked = torch.randint(batch * steps, [batch * 20], device=DEVICE)
  labels = torch.randint(vocab, [batch * 20], device=DEVICE)
  weights = []

  def made(*shape):
    weights.append(weight(*shape))
    return weights[-1]

  def dense(inputs, outputs):
    kernel, bias = made(inputs, outputs), made(outputs)
    return lambda x: x @ kernel + bias

  def norm():
    scale, offset = made(768), made(768)

    def run(x):
      mean = x.mean(-1, keepdim=True)
      factor = scale * torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + 1e-12)
      return x * factor + (offset - mean * factor)
    return run

  def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))

  def heads(x):  # [B, 12, T, 64]
    return x.reshape(batch, steps, 12, 64).transpose(1, 2).contiguous()

  table, first = made(vocab, 768), norm()
  blocks = [([dense(768, 768) for _ in range(4)], norm(), dense(768, 3072), dense(3072, 768),
             norm()) for _ in range(layers)]
  last, bias = (dense(768, 768), norm()), made(vocab)

  def loss():
    x = first(table[words])
    for (query, key, content, output), one, inner, outer, two in blocks:
      scores = torch.softmax(heads(query(x)) @ heads(key(x)).transpose(2, 3) * 0.125, -1)
      attended = (scores @ heads(content(x))).transpose(1, 2).reshape(batch * steps, 768)
      x = one(x + output(attended))
      x = two(x + outer(gelu(inner(x))))
    found = last[1](gelu(last[0](x[masked])))
    return functional.cross_entropy(found @ table.T + bias, labels)
  return weights, loss


def rnnlm(batch, steps=40, hidden=1024, vocab=10000):
  """Returns (weights, loss) of a language model of two LSTM layers, cell by cell."""
  words, labels = (torch.randint(vocab, [steps, batch], device=DEVICE) for _ in range(2))
  weights = [weight(vocab, hidden), weight(hidden, vocab), weight(vocab)]
  weights += [weight(*shape) for _ in range(2) for shape in ((2 * hidden, 4 * hidden),
                                                             (4 * hidden,))]

  def loss():
    states = [[torch.zeros(batch, hidden, device=DEVICE) for _ in range(2)] for _ in range(2)]
    outputs = []
    for x in weights[0][words].unbind(0):
      for layer, state in enumerate(states):
        gates = torch.cat([x, state[1]], 1) @ weights[3 + 2 * layer] + weights[4 + 2 * layer]
        write, candidate, forget, read = gates.chunk(4, 1)
        state[0] = state[0] * torch.sigmoid(forget + 1) + torch.sigmoid(write) * torch.tanh(
            candidate)
        x = state[1] = torch.tanh(state[0]) * torch.sigmoid(read)
      outputs.append(x)
    return functional.cross_entropy(
        torch.cat(outputs) @ weights[1] + weights[2], labels.reshape(-1))
  return weights, loss


def step_of(weights, loss, adam=False, clip=None):
  """Returns a function that runs a training step. Args: as of the models; clip: of the norm."""
  slots = [[torch.zeros_like(each) for _ in range(2)] for each in weights]
  count = torch.ones([], device=DEVICE)

  def run():
    gradients = torch.autograd.grad(loss(), weights)
    if clip is not None:
      norm = torch.stack([torch.linalg.vector_norm(each) for each in gradients]).norm()
      factor = clip / norm.clamp(min=clip)
      gradients = [each * factor for each in gradients]
    with torch.no_grad():
      for value, gradient, (one, two) in zip(weights, gradients, slots):
        if adam:
          torch._fused_adam_([value], [gradient], [one], [two], [], [count], lr=1e-3, beta1=0.9,
                             beta2=0.999, weight_decay=0.0, eps=1e-7, amsgrad=False,
                             maximize=False)
        else:
          torch._fused_sgd_([value], [gradient], [one], weight_decay=0.0, momentum=0.9, lr=1e-4,
                            dampening=0.0, nesterov=False, maximize=False, is_first_step=False)
  return run


def measured(run):
  """Returns the figures of a step: wall clock of 10 steps, then a profile of 3."""
  def synchronize():
    if CUDA:
      torch.cuda.synchronize()

  walls = []
  for _ in range(15):
    synchronize()
    begin = time.perf_counter()
    run()
    synchronize()
    walls.append((time.perf_counter() - begin) * 1e6)
  kinds = [torch.profiler.ProfilerActivity.CUDA if CUDA else torch.profiler.ProfilerActivity.CPU]
  with torch.profiler.profile(activities=kinds) as profile:
    for _ in range(3):
      run()
    synchronize()
  by_kernel = collections.defaultdict(lambda: [0, 0.0])
  for event in profile.events():
    if not CUDA or event.device_type == torch.autograd.DeviceType.CUDA:
      by_kernel[event.name][0] += 1
      by_kernel[event.name][1] += event.time_range.elapsed_us()
  longest = sorted(by_kernel.items(), key=lambda item: -item[1][1])
  return {"wall_us": statistics.median(walls[5:]),
          "busy_us": sum(us for _, us in by_kernel.values()) / 3,
          "kernels": sum(count for count, _ in by_kernel.values()) / 3,
          "by_kernel": [[name[:150], count / 3, us / 3] for name, (count, us) in longest[:60]]}


def main():
  """Times all steps; what was timed is kept after each."""
  torch.backends.cudnn.benchmark = True
  torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
  tiny = {} if CUDA else {"steps": 4, "vocab": 50}
  models = [
      ("mlp:batch=64:optimizer=momentum", lambda: step_of(*perceptron(64))),
      ("mlp:batch=64:optimizer=adam", lambda: step_of(*perceptron(64), adam=True)),
      *((f"zoo:resnet50:batch={batch}",
         lambda batch=batch: step_of(*resnet50(batch, 224 if CUDA else 32)))
        for batch in (8, 64)),
      *((f"zoo:bert:batch={batch}", lambda batch=batch: step_of(
          *bert(batch, 12 if CUDA else 1, **tiny), clip=1.0)) for batch in (4, 32)),
      *((f"zoo:rnnlm:batch={batch}", lambda batch=batch: step_of(
          *rnnlm(batch, hidden=1024 if CUDA else 16, **tiny), clip=5.0)) for batch in (16, 128))]
  found = {"steps": []}
  for name, build in models:
    try:
      row = {"graph": name, **measured(build())}
    except Exception as error:  # one model does not end the others
      row = {"graph": name, "error": f"{type(error).__name__}: {error}"[:300]}
    found["steps"].append(row)
    print({key: value for key, value in row.items() if key != "by_kernel"}, flush=True)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
      json.dump(found, file, indent=1)


if __name__ == "__main__":
  main()
