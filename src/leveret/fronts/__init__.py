"""One package per protocol. A front translates between its protocol and `leveret.broker`.

The rule: a front imports no other front.
"""
