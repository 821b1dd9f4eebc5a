"""Generate the compiler's calibration texts: excerpts of this project, and text written by a small model."""
