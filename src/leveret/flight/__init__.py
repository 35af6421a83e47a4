"""The Arrow Flight contract between the broker and bulk readers and writers, without server and client.

`actions` has requests and answers, `tickets` the tickets of reads and descriptors of writes, `schemas` the
columns of rows, `bounds` the limits of requests. All data is msgpack (msgspec) or Arrow. The rule: no other
package of Leveret is imported here.
"""
