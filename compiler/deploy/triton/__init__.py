"""Model repositories of Triton Inference Server: their content, and how it is written."""
