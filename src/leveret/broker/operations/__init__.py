"""What operators do by name, whatever they use to ask for it: purge a queue, make a topic, move a group.

Each operation finds the objects, checks that the user may do it, and calls `begin` once when nothing stands
in its way and before anything changes; a refused operation has changed nothing. What users and permissions
are made of is `administration`'s. The rule: a right and a refusal are the same whoever asks.
"""
