"""Other runtimes to compare with, each in its own environment and process."""
