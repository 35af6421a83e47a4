"""Operations on objects by name, for every protocol: purge a queue, create a topic, move a group.

An operation finds the objects, checks the user's permissions, and calls `begin` once before the first change;
a refused operation changes nothing. `access.administration` manages users and permissions. The rule:
permissions and refusals do not depend on the protocol of the request.
"""
