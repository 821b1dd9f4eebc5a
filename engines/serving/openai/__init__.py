"""OpenAI-compatible API: routes, request bodies, options and responses."""
