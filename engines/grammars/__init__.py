"""Which tokens may follow a text that must have a form: grammars over an engine's vocabulary, through llguidance."""
