"""Adapters for other frameworks. Each imports its framework only when used."""
