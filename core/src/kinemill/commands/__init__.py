"""Command groups that core itself owns."""
