"""From an op's ``kernel.cu`` to a launch: source text, compilation, packs of cubins, and the launcher."""
