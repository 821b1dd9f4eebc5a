"""The parts of `make bench-cpu`, and the record of their turns."""
