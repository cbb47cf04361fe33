"""Files of the user: read with checks of type and size, written whole or not at all."""
