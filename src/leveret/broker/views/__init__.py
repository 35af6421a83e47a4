"""Everything that a person, a page or a metric may ask of the broker, as plain data.

One module for each kind of thing. `list_x(broker, selection)` is one sorted page of a long list, `one_x` is
one thing, or None. A view is a copy: it stays as it is when the broker goes on. The rule: only what is shown
is described, so a page costs little however many things there are; and nothing is changed here.
"""
