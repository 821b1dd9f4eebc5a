"""The texts that the compiler calibrates with, made: excerpts of this project, and what a small model writes."""
