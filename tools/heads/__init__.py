"""Draft heads for a chat model: the text that it writes, what a head learns from it, and how often a head is right."""
