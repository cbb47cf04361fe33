"""Op name -> device name: made from indices, read, written, checked, and applied to graphs."""

from placeto_tf.placements.checking import check
from placeto_tf.placements.placed_functions import PlacedFunction, place_function
from placeto_tf.placements.placed_saved_models import load_placed
from placeto_tf.placements.placement import Placement
from placeto_tf.placements.writing import write_placed

__all__ = [
    "PlacedFunction", "Placement", "check", "load_placed", "place_function", "write_placed"]
