"""The `agentkit-fast` command."""
