"""hosim."""
