"""Fronts, one per protocol: each translates between its protocol and the broker, and imports no other."""
