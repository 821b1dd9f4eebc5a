"""Which number type each matrix has, where its codes and scales come from, and whether that took effect."""
