"""The compiled replay of tables of actions."""
