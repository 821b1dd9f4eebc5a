"""Other runtimes to measure beside ours, each in an environment and a process of its own."""
