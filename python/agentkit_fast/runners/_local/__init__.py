"""What `LocalRunner` is made of. Private: only `agentkit_fast.runners.local` is public."""
