"""Views: the state of the broker as plain data, for the HTTP API, pages and metrics.

There is one module for each kind of object. `list_x(broker, selection)` returns one sorted page of the
objects of a kind, `one_x` one object's view or None, `each_x` all objects, as views or to be described one
by one. A view is a copy, so it does not change later. The rule: only the objects of the page are described,
so a page is cheap however many objects exist; and a view changes nothing.
"""
