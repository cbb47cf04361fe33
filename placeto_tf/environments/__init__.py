"""The decision processes in which placements are improved, and their faces for learners."""
