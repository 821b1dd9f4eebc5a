"""Command-line flags: declaration, parsing into requests, help and shell completion."""
