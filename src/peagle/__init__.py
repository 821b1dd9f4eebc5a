"""peagle-compile: a large language model and its P-EAGLE drafter, compiled and run."""
