"""Anthropic's Messages API: routes, request bodies, conversations and responses."""
