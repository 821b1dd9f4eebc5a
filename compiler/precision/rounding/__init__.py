"""Groups of numbers become codes and what the codes are multiplied by."""
