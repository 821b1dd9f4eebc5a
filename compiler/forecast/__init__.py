"""What a build or an export would make, worked out from the configuration alone."""
