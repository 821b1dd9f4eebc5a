"""Estimates of decoding speed: the work of a round, the speed of a device, and the tokens that a round yields."""
