"""Attacks on everything that is stored: damage and kills (`make attack`, docs/reliability.md)."""
