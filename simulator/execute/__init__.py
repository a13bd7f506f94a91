"""Runs a plan: lower tiers that copies go to, and what measures this machine for a plan."""
