"""Engines as model repositories of Triton Inference Server: what lies in one, and how it is written."""
