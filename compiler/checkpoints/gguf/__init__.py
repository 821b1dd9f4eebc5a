"""GGUF files: a whole checkpoint (sizes, weights, tokenizer, chat template) in one file, as llama.cpp reads it."""
