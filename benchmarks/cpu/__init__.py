"""What `make bench-cpu` measures, part by part, and what it keeps of every turn."""
