"""From a placement to step time, peak memory and a schedule."""

from placeto_tf.simulation.memory import memory_report
from placeto_tf.simulation.schedule import SimulationResult
from placeto_tf.simulation.simulator import Simulator
from placeto_tf.simulation.timeline import timeline_png, write_timeline

__all__ = ["SimulationResult", "Simulator", "memory_report", "timeline_png", "write_timeline"]
