"""Training loops in the forms of tutorials, for `train_loops.py`.

A loop is a function of a Keras that builds all anew and returns (step, batches, variables): the
step as its user wrote it, the arguments of each call, and a function that returns all variables.
"""

import numpy as np
import tensorflow as tf

BATCH, PARTIAL = 8, 6
LOOPS = {}


def loop(function):
  """Adds a loop to `LOOPS`."""
  LOOPS[function.__name__] = function
  return function


def arrays(partial, *parts, count=3):
  """Batches of arrays: a part is a shape of floats, or (shape, number of classes)."""
  rng = np.random.default_rng(7)
  for i in range(count):
    size = PARTIAL if partial and i == count - 1 else BATCH
    yield tuple(
        rng.integers(0, part[1], [size, *part[0]]).astype(np.int32) if isinstance(part, tuple) else
        np.float32(rng.random([size, *part])) for part in parts)


def tensors(partial, *parts, count=3):
  """Batches as `arrays` has them, of tensors."""
  return [tuple(map(tf.constant, batch)) for batch in arrays(partial, *parts, count=count)]


def inner(variable):
  """The tf.Variable of a Keras 3 variable."""
  return variable if callable(getattr(variable, "value", None)) else variable.value


def values(*owners):
  """A function that returns all variables of models, optimizers and metrics."""

  def get():
    found = []
    for owner in owners:
      each = owner.variables() if callable(owner.variables) else owner.variables
      found += [inner(variable) for variable in each]
    return found

  return get


def dense(keras, *units, inputs=5):
  """A perceptron with these layers, the last one linear."""
  hidden = [keras.layers.Dense(each, activation="relu") for each in units[:-1]]
  return keras.Sequential([keras.Input([inputs]), *hidden, keras.layers.Dense(units[-1])])


def update(tape, loss, optimizer, *owners):
  """Applies the gradients of models or layers."""
  variables = [variable for owner in owners for variable in owner.trainable_variables]
  optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


def squares(predicted, y):
  """The mean squared error."""
  return tf.reduce_mean((predicted - y) ** 2)


@loop
def subclassed(keras, partial):
  """A subclassed model that is built in its first call, with metrics."""

  class Classifier(keras.Model):

    def __init__(self):
      super().__init__()
      self.hidden = keras.layers.Dense(16, activation="relu")
      self.out = keras.layers.Dense(4)

    def call(self, x):
      return self.out(self.hidden(x))

  model, optimizer = Classifier(), keras.optimizers.Adam(0.01)
  loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

  @tf.function
  def train_step(x, y):
    with tf.GradientTape() as tape:
      logits = model(x, training=True)
      loss = loss_of(y, logits)
    update(tape, loss, optimizer, model)
    mean.update_state(loss)
    accuracy.update_state(y, logits)
    return loss

  return train_step, tensors(partial, [5], ([], 4)), values(model, optimizer, mean, accuracy)


@loop
def gan(keras, partial):
  """DCGAN: two models and two optimizers in one step, noise of a size that is written there."""
  layers = keras.layers
  generator = keras.Sequential([
      keras.Input([6]), layers.Dense(4 * 4 * 4, use_bias=False), layers.BatchNormalization(),
      layers.LeakyReLU(), layers.Reshape([4, 4, 4]),
      layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="tanh")])
  discriminator = keras.Sequential([
      keras.Input([8, 8, 1]), layers.Conv2D(4, 3, strides=2, padding="same"), layers.LeakyReLU(),
      layers.Flatten(), layers.Dense(1)])
  entropy = keras.losses.BinaryCrossentropy(from_logits=True)
  of_generator, of_discriminator = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)

  @tf.function
  def train_step(images):
    noise = tf.random.normal([BATCH, 6])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
      generated = generator(noise, training=True)
      real, fake = discriminator(images, training=True), discriminator(generated, training=True)
      gen_loss = entropy(tf.ones_like(fake), fake)
      disc_loss = entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(fake), fake)
    update(gen_tape, gen_loss, of_generator, generator)
    update(disc_tape, disc_loss, of_discriminator, discriminator)
    return gen_loss, disc_loss

  return train_step, tensors(partial, [8, 8, 1]), values(
      generator, discriminator, of_generator, of_discriminator)


@loop
def actor_critic(keras, partial):
  """A2C: an episode in NumPy inside a loop, in TensorArrays that grow; a loop over its length."""
  state = keras.Input([4])
  common = keras.layers.Dense(8, activation="relu")(state)
  model = keras.Model(state, [keras.layers.Dense(2)(common), keras.layers.Dense(1)(common)])
  optimizer, huber = keras.optimizers.Adam(0.01), keras.losses.Huber(reduction="sum")

  def env_step(action, state):
    new = np.float32(state * 0.9 + (0.1 if action else -0.1))
    return new, np.float32(1 - abs(new).sum() / 4), np.int32(abs(new).sum() < 0.3)

  def run_episode(initial, max_steps):
    probs, critics, rewards = (
        tf.TensorArray(tf.float32, size=0, dynamic_size=True) for _ in range(3))
    shape, state = initial.shape, initial
    for t in tf.range(max_steps):
      logits, value = model(tf.expand_dims(state, 0))
      action = tf.argmax(logits, axis=1, output_type=tf.int32)[0]
      probs = probs.write(t, tf.nn.softmax(logits)[0, action])
      critics = critics.write(t, tf.squeeze(value))
      state, reward, done = tf.numpy_function(
          env_step, [action, state], [tf.float32, tf.float32, tf.int32])
      state.set_shape(shape)
      reward.set_shape([])
      rewards = rewards.write(t, reward)
      if tf.cast(done, tf.bool):
        break
    return probs.stack(), critics.stack(), rewards.stack()

  def expected_return(rewards):
    n = tf.shape(rewards)[0]
    returns = tf.TensorArray(tf.float32, size=n)
    rewards = tf.cast(rewards[::-1], tf.float32)
    total = tf.constant(0.0)
    shape = total.shape
    for i in tf.range(n):
      total = rewards[i] + 0.9 * total
      total.set_shape(shape)
      returns = returns.write(i, total)
    found = returns.stack()[::-1]
    return (found - tf.math.reduce_mean(found)) / (tf.math.reduce_std(found) + 1e-6)

  @tf.function
  def train_step(initial_state, max_steps):
    with tf.GradientTape() as tape:
      probs, critics, rewards = run_episode(initial_state, max_steps)
      returns = expected_return(rewards)
      probs, critics, returns = [tf.expand_dims(x, 1) for x in (probs, critics, returns)]
      loss = -tf.math.reduce_sum(tf.math.log(probs) * (returns - critics)) + huber(critics, returns)
    update(tape, loss, optimizer, model)
    return tf.math.reduce_sum(rewards)

  starts = [(tf.constant([1.0, -0.5, i / 3, 0.2], tf.float32), 6) for i in range(3)]
  return train_step, starts, values(model, optimizer)


@loop
def accumulation_inside(keras, partial):
  """Gradients are added up in variables, and a condition on a counter applies them."""
  model = dense(keras, 1)
  variables_of = [inner(variable) for variable in model.trainable_variables]
  sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in variables_of]
  count = tf.Variable(0, trainable=False)

  @tf.function
  def train_step(x, y):
    with tf.GradientTape() as tape:
      loss = squares(model(x, training=True), y)
    for total, gradient in zip(sums, tape.gradient(loss, variables_of)):
      total.assign_add(gradient)
    count.assign_add(1)
    if tf.equal(count % 2, 0):
      for total, variable in zip(sums, variables_of):
        variable.assign_sub(0.1 * total)
        total.assign(tf.zeros_like(total))
    return loss

  return train_step, tensors(partial, [5], [1], count=4), lambda: [*variables_of, *sums, count]


@loop
def mixed_precision(keras, partial):
  """float16 with a LossScaleOptimizer."""
  policies = keras.mixed_precision
  policy = policies.global_policy() if hasattr(policies, "global_policy") else (
      policies.dtype_policy())
  policies.set_global_policy("mixed_float16")
  try:
    model = keras.Sequential([
        keras.Input([5]), keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(1, dtype="float32")])
  finally:
    policies.set_global_policy(policy)
  optimizer = policies.LossScaleOptimizer(keras.optimizers.Adam(0.01))
  legacy = hasattr(optimizer, "get_scaled_loss")

  @tf.function
  def train_step(x, y):
    with tf.GradientTape() as tape:
      loss = squares(model(x, training=True), y)
      scaled = optimizer.get_scaled_loss(loss) if legacy else optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    if legacy:
      gradients = optimizer.get_unscaled_gradients(gradients)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

  return train_step, tensors(partial, [5], [1]), values(model, optimizer)


@loop
def recommender(keras, partial):
  """Two embeddings, a batch that is a dict, Adagrad on rows."""
  users, items = keras.layers.Embedding(20, 4), keras.layers.Embedding(30, 4)
  optimizer = keras.optimizers.Adagrad(0.1)

  @tf.function
  def train_step(features):
    with tf.GradientTape() as tape:
      one, two = users(features["user"]), items(features["item"])
      scores = tf.linalg.matmul(one, two, transpose_b=True)
      loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(
          tf.eye(tf.shape(scores)[0]), scores))
    update(tape, loss, optimizer, users, items)
    return loss

  batches = [({"user": user, "item": item},)
             for user, item in arrays(partial, ([], 20), ([], 30))]
  return train_step, batches, values(users, items, optimizer)


@loop
def module(keras, partial):
  """A tf.Module that is built in its first call, momentum by hand, and a plain function."""

  class Dense(tf.Module):

    def __init__(self, size, name=None):
      super().__init__(name)
      self.size, self.w = size, None

    def __call__(self, x):
      if self.w is None:
        self.w = tf.Variable(tf.random.stateless_normal([x.shape[-1], self.size], [1, 2]), name="w")
        self.b = tf.Variable(tf.zeros([self.size]), name="b")
      return x @ self.w + self.b

  class Net(tf.Module):

    def __init__(self):
      super().__init__()
      self.one, self.two = Dense(8), Dense(1)

    def __call__(self, x):
      return self.two(tf.nn.relu(self.one(x)))

  net = Net()

  def train_step(x, y, rate=0.1):
    with tf.GradientTape() as tape:
      loss = squares(net(x), y)
    for variable, gradient in zip(
        net.trainable_variables, tape.gradient(loss, net.trainable_variables)):
      variable.assign_sub(rate * gradient)
    return loss

  return train_step, tensors(partial, [5], [1]), lambda: list(net.trainable_variables)


@loop
def minimize(keras, partial):
  """`optimizer.minimize` of a method, where Keras has it; called by keywords."""

  class Trainer:

    def __init__(self):
      self.model, self.optimizer = dense(keras, 1), keras.optimizers.SGD(0.1)

    @tf.function
    def step(self, x, y, weight=1.0):
      if not hasattr(self.optimizer, "minimize"):
        with tf.GradientTape() as tape:
          loss = weight * squares(self.model(x), y)
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables),
                             self.model.trainable_variables)
        return loss
      self.optimizer.minimize(
          lambda: weight * squares(self.model(x), y), self.model.trainable_variables)
      return squares(self.model(x), y)

  trainer = Trainer()  # `values` keeps it alive, as a loop of a program does
  return trainer.step, [{"x": x, "y": y} for x, y in tensors(partial, [5], [1])], lambda: values(
      trainer.model, trainer.optimizer)()


@loop
def iterator(keras, partial):
  """The step takes the iterator of a tf.data pipeline, and the next batch from it."""
  model, optimizer = dense(keras, 1), keras.optimizers.Adam(0.01)

  @tf.function
  def train_step(batches_of):
    x, y = next(batches_of)
    with tf.GradientTape() as tape:
      loss = squares(model(x, training=True), y)
    update(tape, loss, optimizer, model)
    return loss

  columns = (np.concatenate(column) for column in zip(*arrays(partial, [5], [1])))
  data = tf.data.Dataset.from_tensor_slices(tuple(columns)).batch(BATCH)
  return train_step, [(iter(data),)] * 3, values(model, optimizer)


@loop
def open_signature(keras, partial):
  """A signature with unknown dimensions: sequences of several lengths."""
  table, gru, out = keras.layers.Embedding(20, 4), keras.layers.GRU(4), keras.layers.Dense(1)
  optimizer = keras.optimizers.Adam()

  @tf.function(input_signature=[
      tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, 1], tf.float32)])
  def train_step(words, y):
    with tf.GradientTape() as tape:
      loss = squares(out(gru(table(words))), y)
    update(tape, loss, optimizer, table, gru, out)
    return loss

  batches = [(words[:, :length], y) for length, (words, y) in zip(
      (5, 5, 3, 4, 7), arrays(partial, ([7], 20), [1], count=5))]
  return train_step, batches, values(table, gru, out, optimizer)
