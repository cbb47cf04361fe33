"""Clusters: devices and links, from presets, from JSON, or found on this machine."""

from placeto_tf.clusters.cluster import Cluster
from placeto_tf.clusters.constraints import allowed_devices
from placeto_tf.clusters.device import Device

__all__ = ["Cluster", "Device", "allowed_devices"]
