"""Structured outputs: grammars over an engine's vocabulary that decide which tokens may follow, based on llguidance."""
