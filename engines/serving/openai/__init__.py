"""OpenAI's API: its paths, bodies, options and answers."""
