"""Disk, memory and time that a build or an export needs, compared with this machine."""
