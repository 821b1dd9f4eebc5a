"""What a build or an export takes of disks, memory and time, and whether this machine has it."""
