"""Training with actors ends with the weights of training without, whatever their number."""

import contextlib
import dataclasses
import gc
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from placeto_tf.errors import SetupError
from placeto_tf.policies.device_pointer.scorer import ScorerWeights
from placeto_tf.policies.gdp.network import GdpConfig
from placeto_tf.policies.gdp.node_inputs import node_problem
from placeto_tf.policies.placeto.network import NetworkConfig
from placeto_tf.training import placeto_training
from placeto_tf.training.gain_training import GainTrainer, GainTrainingConfig
from placeto_tf.training.gdp_training import PPO, GdpTrainer, GdpTrainingConfig
from placeto_tf.training.placeto_config import PlacetoConfig
from placeto_tf.training.placeto_episodes import FamilyProblem
from placeto_tf.training.placeto_training import PlacetoTrainer, PlacetoTrainingConfig
from placeto_tf.training.pointer_problems import with_starts
from random_problem import random_problem

ray = pytest.importorskip("ray", reason="Ray, an optional extra, is not installed")

from placeto_tf.distributed import session  # noqa: E402
