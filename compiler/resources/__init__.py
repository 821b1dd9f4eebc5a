"""What a build or an export takes of disk, memory and time, and whether this machine has it."""
