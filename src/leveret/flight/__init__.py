"""The Arrow Flight contract between the broker and those who read and write it in bulk: no server, no client.

`actions` has what is asked and answered, `tickets` what a read and a write are about, `schemas` how rows
look on the wire. Everything is msgpack (msgspec) or Arrow; nothing of ours is imported here.
"""
