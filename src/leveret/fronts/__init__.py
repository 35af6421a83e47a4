"""The protocols in which clients speak to the broker: one package each, none of which knows another."""
