"""An engine goes to where it is served: archives, and what a container's host puts beside it."""
