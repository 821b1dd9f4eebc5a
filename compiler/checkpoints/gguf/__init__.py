"""GGUF files: a complete checkpoint (sizes, weights, tokenizer, chat template) in one file, as used by llama.cpp."""
