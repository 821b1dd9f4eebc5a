"""OpenAI's Responses API: routes, request bodies, items, stored responses and answers."""
