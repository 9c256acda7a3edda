"""Runners: what talks to a model."""
