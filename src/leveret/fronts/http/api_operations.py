"""What each route of the HTTP API takes, answers and needs, for the OpenAPI document.

    OPERATIONS["/api/queues/{vhost}/{name}"]["DELETE"].summary    # "Delete a queue"

Owns the table; `openapi` makes the document from it, and `api_schemas` has the types. A test compares the
table with the routes of the application, another one the tags with those that the routes ask for. The
statuses that all operations of a kind share are left to `openapi`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from leveret.fronts.http.api_schemas import Schema, reference

ADMINISTRATOR: Final = "administrator"
POLICYMAKER: Final = "policymaker"
MONITORING: Final = "monitoring"

Query: TypeAlias = dict[str, tuple[Schema, str]]
_TEXT: Final[Schema] = {"type": "string"}
_SWITCH: Final[Schema] = {"type": "string", "enum": ["true", "false"]}
_COLUMNS: Final[Query] = {"columns": (_TEXT, "Only these fields: `name,message_stats.ack`.")}
_ORDER: Final[Query] = {
    "sort": (_TEXT, "The column to order by."),
    "sort_reverse": (_SWITCH, "Turns the order round."),
    **_COLUMNS,
}
_PAGES: Final[Query] = {
    "page": ({"type": "integer", "minimum": 1, "maximum": 10**18 - 1}, "The page to show."),
    "page_size": ({"type": "integer", "minimum": 1, "maximum": 500}, "Rows of a page."),
    "name": (_TEXT, "On a page: only names with this text."),
    "use_regex": (_SWITCH, "Whether `name` is a regular expression."),
    **_ORDER,
}
_RATES: Final[Query] = {
    f"{kind}_{part}": (_TEXT, f"Samples of the past: {what}.")
    for kind in ("msg_rates", "data_rates", "lengths", "node_stats")
    for part, what in (("age", "how far back, in seconds"), ("incr", "seconds between two"))
}
_STATS: Final[Query] = {
    "disable_stats": (_SWITCH, "Shows queues as they were declared."),
    "enable_queue_totals": (_SWITCH, "With `disable_stats`: also numbers of messages."),
}
_SUBJECT: Final[Query] = {"subject": (_TEXT, "The stream or topic, if groups of one name read several.")}
_IF_UNUSED: Final[Query] = {"if-unused": (_SWITCH, "Refuses the deletion of an object that is used.")}
_DRY_RUN: Final[Query] = {"dry_run": (_SWITCH, "Whether nothing is changed.")}


@dataclass(frozen=True, slots=True)
class Operation:
    """`Operation("Delete a queue", query=_IF_UNUSED)`."""

    summary: str
    answers: Schema | None = None
    """The schema of a 200. Without one the operation answers 204, or 201 to a PUT that has made something."""
    body: str = ""
    """The name of the schema of the body; empty for a body that is not read."""
    query: Query | None = None
    tag: str = ""
    """The tag that users need, besides one of RabbitMQ's four; administrators may all that others may."""
    more: tuple[int, ...] = ()
    """Further statuses."""
    done: tuple[int, ...] = ()
    """Statuses without a body, where they are not the usual ones."""
    is_open: bool = False
    """Whether no login is needed."""
    media_type: str = "application/json"


def _array(name: str) -> Schema:
    return {"type": "array", "items": reference(name)}


def _selected(name: str) -> Schema:
    """Return the schema of an object with some columns; RabbitMQ shows no columns as an empty list."""
    return {"anyOf": [reference(name), {"type": "array", "maxItems": 0}]}


def _rows(name: str) -> Schema:
    return {"type": "array", "items": _selected(name)}


def _paged(name: str) -> Schema:
    """Return the schema of a list, or of a page of it."""
    counts = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
    page = {
        "type": "object",
        "required": ["items", *counts],
        "properties": {"items": _rows(name), **{name: {"type": "integer"} for name in counts}},
    }
    return {"anyOf": [_rows(name), page]}


Table: TypeAlias = dict[str, dict[str, Operation]]
_CHECK: Final = reference("check")
_CHECKS: Final = {
    "alarms": "Fail while memory or disk is short",
    "local-alarms": "Fail while memory or disk of this node is short",
    "certificate-expiration/{within}/{unit}": "Fail if a certificate ends within a time",
    "port-listener/{port}": "Fail if nothing listens on a port",
    "protocol-listener/{protocol}": "Fail if nothing speaks a protocol",
    "virtual-hosts": "Fail if a virtual host is down: never",
    "node-is-mirror-sync-critical": "Fail if other nodes need this one: never",
    "node-is-quorum-critical": "Fail if other nodes need this one: never",
}
_PAGE_OF_METRICS: Final[dict[str, Any]] = {
    "answers": _TEXT,
    "tag": MONITORING,
    "media_type": "text/plain",
}

_NODE: Final[Table] = {
    "/health": {
        "GET": Operation(
            "Show whether the broker accepts publishes", reference("health"), more=(503,), is_open=True
        )
    },
    "/metrics": {"GET": Operation("Metrics, as sums over all objects", **_PAGE_OF_METRICS)},
    "/metrics/per-object": {"GET": Operation("Metrics of each object", **_PAGE_OF_METRICS)},
    "/metrics/detailed": {
        "GET": Operation(
            "Metrics of chosen families",
            query={
                "family": (_TEXT, "A family of metrics; may be repeated."),
                "vhost": (_TEXT, "A virtual host; may be repeated."),
            },
            **_PAGE_OF_METRICS,
        )
    },
    "/api/openapi.json": {"GET": Operation("This document", {"type": "object"})},
    "/api/overview": {
        "GET": Operation("Version, totals and rates", _selected("overview"), query=_RATES | _COLUMNS)
    },
    "/api/login": {
        "POST": Operation("Get a token for a name and a password", reference("token"), body="nothing"),
        "DELETE": Operation("End the token of the request, or all tokens of the user"),
    },
    "/api/whoami": {"GET": Operation("Show the user of the request", reference("whoami"))},
    "/api/nodes": {
        "GET": Operation("List the nodes", _rows("node"), query=_RATES | _COLUMNS, tag=MONITORING)
    },
    "/api/nodes/{name}": {
        "GET": Operation(
            "Show a node",
            _selected("node"),
            query={"memory": (_SWITCH, "Also shows who uses the memory."), **_RATES, **_COLUMNS},
            tag=MONITORING,
        )
    },
    "/api/nodes/{name}/memory": {
        "GET": Operation("Show who uses the memory", _selected("memory"), query=_COLUMNS, tag=MONITORING)
    },
    "/api/nodes/{name}/memory/relative": {
        "GET": Operation("Show shares of the memory", _selected("memory"), query=_COLUMNS, tag=MONITORING)
    },
    "/api/cluster-name": {
        "GET": Operation("Show the broker's name", _selected("name"), query=_COLUMNS),
        "PUT": Operation("Rename the broker", body="name", done=(204,), tag=ADMINISTRATOR),
    },
    "/api/extensions": {"GET": Operation("List plugins with pages: none", {"type": "array", "maxItems": 0})},
    "/api/feature-flags": {
        "GET": Operation("List feature flags", _rows("flag"), query=_COLUMNS, tag=ADMINISTRATOR)
    },
    "/api/rebalance/queues": {"POST": Operation("Spread queues over nodes: nothing", tag=ADMINISTRATOR)},
    "/api/auth/attempts/{name}": {
        "GET": Operation("Count logins by protocol", _rows("attempts"), query=_COLUMNS, tag=MONITORING),
        "DELETE": Operation("Begin to count logins again", tag=MONITORING),
    },
    "/api/auth/attempts/{name}/source": {
        "GET": Operation("Count logins by address: none", {"type": "array", "maxItems": 0}, tag=MONITORING),
        "DELETE": Operation("Begin to count logins by address again: nothing", tag=MONITORING),
    },
    "/api/aliveness-test/{vhost}": {
        "GET": Operation("Send a message through a queue", _CHECK, more=(403, 503)),
    },
    **{
        f"/api/health/checks/{path}": {"GET": Operation(summary, _CHECK, more=(503,))}
        for path, summary in _CHECKS.items()
    },
    **{
        path: {"GET": Operation("Check the node, as older tools do", _CHECK)}
        for path in ("/api/healthchecks/node", "/api/healthchecks/node/{name}")
    },
}

_CLIENTS: Final[Table] = {
    "/api/connections": {
        "GET": Operation("List connections", _paged("connection"), query=_PAGES | _RATES),
    },
    "/api/vhosts/{vhost}/connections": {
        "GET": Operation("List connections to a virtual host", _rows("connection"), query=_ORDER | _RATES),
    },
    "/api/connections/{name}": {
        "GET": Operation("Show a connection", reference("connection"), query=_RATES),
        "DELETE": Operation("Close a connection"),
    },
    "/api/connections/{name}/channels": {
        "GET": Operation("List the channels of a connection", _rows("channel"), query=_ORDER | _RATES),
    },
    "/api/connections/username/{username}": {
        "GET": Operation("List the connections of a user", _paged("connection"), query=_PAGES | _RATES),
        "DELETE": Operation("Close the connections of a user"),
    },
    "/api/channels": {"GET": Operation("List channels", _paged("channel"), query=_PAGES | _RATES)},
    "/api/vhosts/{vhost}/channels": {
        "GET": Operation("List channels of a virtual host", _rows("channel"), query=_ORDER | _RATES),
    },
    "/api/channels/{name}": {
        "GET": Operation("Show a channel with its consumers", reference("channel"), query=_RATES),
    },
    "/api/consumers": {"GET": Operation("List consumers", _rows("consumer"), query=_ORDER | _RATES)},
    "/api/consumers/{vhost}": {
        "GET": Operation("List consumers of a virtual host", _rows("consumer"), query=_ORDER | _RATES),
    },
}

_LISTED_QUEUES: Final[Query] = _PAGES | _STATS | _RATES
_QUEUE: Final = "/api/queues/{vhost}/{name}"
_EXCHANGE: Final = "/api/exchanges/{vhost}/{name}"
_BETWEEN: Final = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
_LIST_BINDINGS: Final[dict[str, Any]] = {"answers": _rows("binding"), "query": _ORDER}

_MESSAGING: Final[Table] = {
    "/api/queues": {"GET": Operation("List queues", _paged("queue"), query=_LISTED_QUEUES)},
    "/api/queues/{vhost}": {
        "GET": Operation("List queues of a virtual host", _paged("queue"), query=_LISTED_QUEUES),
    },
    _QUEUE: {
        "GET": Operation("Show a queue", _selected("queue"), query=_STATS | _RATES | _COLUMNS),
        "PUT": Operation("Declare a queue", body="queue declaration"),
        "DELETE": Operation(
            "Delete a queue",
            query={"if-empty": (_SWITCH, "Refuses the deletion of a queue with messages."), **_IF_UNUSED},
        ),
    },
    f"{_QUEUE}/bindings": {"GET": Operation("List bindings that lead to a queue", **_LIST_BINDINGS)},
    f"{_QUEUE}/contents": {"DELETE": Operation("Purge a queue")},
    f"{_QUEUE}/get": {"POST": Operation("Get messages", _array("message"), body="get", more=(501,))},
    f"{_QUEUE}/actions": {
        "POST": Operation("Synchronise mirrors: nothing to do", body="queue action", tag=ADMINISTRATOR),
    },
    f"{_QUEUE}/queries/{{query}}": {"DELETE": Operation("End a Spark query, and requeue its messages")},
    "/api/exchanges": {"GET": Operation("List exchanges", _paged("exchange"), query=_PAGES | _RATES)},
    "/api/exchanges/{vhost}": {
        "GET": Operation("List exchanges of a virtual host", _paged("exchange"), query=_PAGES | _RATES),
    },
    _EXCHANGE: {
        "GET": Operation("Show an exchange", _selected("exchange"), query=_RATES | _COLUMNS),
        "PUT": Operation("Declare an exchange", body="exchange declaration"),
        "DELETE": Operation("Delete an exchange", query=_IF_UNUSED),
    },
    f"{_EXCHANGE}/bindings/source": {"GET": Operation("List bindings from an exchange", **_LIST_BINDINGS)},
    f"{_EXCHANGE}/bindings/destination": {"GET": Operation("List bindings to an exchange", **_LIST_BINDINGS)},
    f"{_EXCHANGE}/publish": {
        "POST": Operation("Publish a message", reference("routed"), body="publication"),
    },
    "/api/bindings": {"GET": Operation("List bindings", **_LIST_BINDINGS)},
    "/api/bindings/{vhost}": {"GET": Operation("List bindings of a virtual host", **_LIST_BINDINGS)},
    _BETWEEN: {
        "GET": Operation("List bindings between two objects", **_LIST_BINDINGS),
        "POST": Operation("Bind", body="new binding", done=(201,)),
    },
    f"{_BETWEEN}/{{properties_key}}": {
        "GET": Operation("Show a binding", _selected("binding"), query=_COLUMNS),
        "DELETE": Operation("Unbind"),
    },
}

_TOPIC: Final = "/api/topics/{vhost}/{name}"
_GROUP: Final = "/api/groups/{vhost}/{group}"
_GROUPS: Final[Table] = {
    "/api/topics": {"GET": Operation("List topics", _array("topic"))},
    "/api/topics/{vhost}": {"GET": Operation("List topics of a virtual host", _array("topic"))},
    _TOPIC: {
        "GET": Operation("Show a topic with partitions and groups", reference("topic")),
        "PUT": Operation("Make or change a topic", reference("topic"), body="topic settings", more=(201,)),
        "DELETE": Operation("Delete a topic with its messages"),
    },
    "/api/groups": {"GET": Operation("List groups", _array("group"))},
    "/api/groups/{vhost}": {"GET": Operation("List groups of a virtual host", _array("group"))},
    _GROUP: {
        "GET": Operation(
            "Show groups of a name with members and partitions",
            _array("group"),
            query={
                "limit": ({"type": "integer"}, "Deliveries, ranges and delays that are listed."),
                "cells": ({"type": "integer"}, "Cells of a window of each partition."),
                **_SUBJECT,
            },
        ),
        "PUT": Operation("Make or change a group", reference("group"), body="new group", more=(201,)),
        "PATCH": Operation("Change settings", reference("group"), body="group settings", query=_SUBJECT),
        "DELETE": Operation("Delete a group with its progress", query=_SUBJECT),
    },
    f"{_GROUP}/seek": {
        "POST": Operation("Move a group", reference("seeked"), body="seek", query=_SUBJECT),
    },
    f"{_GROUP}/skip": {
        "POST": Operation("Skip a message", reference("skipped"), body="skip", query=_SUBJECT),
    },
    **{
        f"{_GROUP}/{verb}": {
            "POST": Operation(
                f"{verb.capitalize()} a group", reference("group"), body="nothing", query=_SUBJECT
            )
        }
        for verb in ("pause", "resume")
    },
    f"{_GROUP}/redrive": {
        "POST": Operation("Deliver dead letters again", reference("redriven"), body="redrive", query=_SUBJECT)
    },
}

_ADMIN: Final[dict[str, Any]] = {"tag": ADMINISTRATOR}
_LIST_PERMISSIONS: Final[dict[str, Any]] = {"answers": _array("permission"), **_ADMIN}
_LIST_TOPICS: Final[dict[str, Any]] = {"answers": _array("topic permission"), **_ADMIN}

_USERS: Final[Table] = {
    "/api/users": {"GET": Operation("List users", _array("user"), **_ADMIN)},
    "/api/users/without-permissions": {
        "GET": Operation("List users who may not enter any virtual host", _array("user"), **_ADMIN)
    },
    "/api/users/bulk-delete": {"POST": Operation("Delete users", body="user names", more=(404,), **_ADMIN)},
    "/api/users/{name}": {
        "GET": Operation("Show a user", reference("user"), **_ADMIN),
        "PUT": Operation("Make or change a user", body="new user", **_ADMIN),
        "DELETE": Operation("Delete a user", **_ADMIN),
    },
    "/api/users/{name}/permissions": {"GET": Operation("List permissions of a user", **_LIST_PERMISSIONS)},
    "/api/users/{name}/topic-permissions": {
        "GET": Operation("List topic permissions of a user", **_LIST_TOPICS)
    },
    "/api/permissions": {"GET": Operation("List permissions", **_LIST_PERMISSIONS)},
    "/api/permissions/{vhost}": {
        "GET": Operation("List permissions in a virtual host", **_LIST_PERMISSIONS),
    },
    "/api/vhosts/{vhost}/permissions": {
        "GET": Operation("List permissions in a virtual host", **_LIST_PERMISSIONS),
    },
    "/api/permissions/{vhost}/{name}": {
        "GET": Operation("Show permissions", reference("permission"), **_ADMIN),
        "PUT": Operation("Set permissions", body="new permission", **_ADMIN),
        "DELETE": Operation("Remove permissions", **_ADMIN),
    },
    "/api/topic-permissions": {"GET": Operation("List topic permissions", **_LIST_TOPICS)},
    "/api/vhosts/{vhost}/topic-permissions": {
        "GET": Operation("List topic permissions in a virtual host", **_LIST_TOPICS),
    },
    "/api/topic-permissions/{vhost}/{name}": {
        "GET": Operation("Show topic permissions of a user in a virtual host", **_LIST_TOPICS),
        "PUT": Operation("Set topic permissions for an exchange", body="new topic permission", **_ADMIN),
        "DELETE": Operation("Remove topic permissions for all exchanges", **_ADMIN),
    },
    **{
        path: {"GET": Operation("List limits", _array("limits"))}
        for path in (
            "/api/vhost-limits",
            "/api/vhost-limits/{vhost}",
            "/api/user-limits",
            "/api/user-limits/{name}",
        )
    },
    **{
        f"{path}/{{limit}}": {
            "PUT": Operation("Set a limit", body="new limit", done=(204,), **_ADMIN),
            "DELETE": Operation("Remove a limit", **_ADMIN),
        }
        for path in ("/api/vhost-limits/{vhost}", "/api/user-limits/{name}")
    },
}

_PARAMETER: Final = "/api/parameters/{component}/{vhost}/{name}"
_POLICYMAKER: Final[dict[str, Any]] = {"tag": POLICYMAKER}
_SETTINGS: Final[Table] = {
    "/api/vhosts": {"GET": Operation("List virtual hosts", _array("vhost"))},
    "/api/vhosts/{name}": {
        "GET": Operation("Show a virtual host", reference("vhost"), **_ADMIN),
        "PUT": Operation("Make or change a virtual host", body="new vhost", **_ADMIN),
        "DELETE": Operation("Delete a virtual host with all that is in it", **_ADMIN),
    },
    "/api/vhosts/{name}/start/{node}": {"POST": Operation("Start a virtual host: it runs", **_ADMIN)},
    **{
        path: {"GET": Operation("List parameters", _array("parameter"), **_POLICYMAKER)}
        for path in ("/api/parameters", "/api/parameters/{component}", "/api/parameters/{component}/{vhost}")
    },
    _PARAMETER: {
        "GET": Operation("Show a parameter", reference("parameter"), **_POLICYMAKER),
        "PUT": Operation("Set a parameter", body="new parameter", **_POLICYMAKER),
        "DELETE": Operation("Remove a parameter", **_POLICYMAKER),
    },
    "/api/global-parameters": {
        "GET": Operation("List global parameters", _array("global parameter"), **_POLICYMAKER)
    },
    "/api/global-parameters/{name}": {
        "GET": Operation("Show a global parameter", reference("global parameter"), **_POLICYMAKER),
        "PUT": Operation("Set a global parameter", body="new global parameter", **_POLICYMAKER),
        "DELETE": Operation("Remove a global parameter", **_POLICYMAKER),
    },
    **{
        path: operations
        for kind, tag in (("policies", POLICYMAKER), ("operator-policies", ADMINISTRATOR))
        for path, operations in {
            f"/api/{kind}": {"GET": Operation("List policies", _array("policy"))},
            f"/api/{kind}/{{vhost}}": {"GET": Operation("List policies of a virtual host", _array("policy"))},
            f"/api/{kind}/{{vhost}}/{{name}}": {
                "GET": Operation("Show a policy", reference("policy"), tag=tag),
                "PUT": Operation("Make or change a policy", body="new policy", tag=tag),
                "DELETE": Operation("Delete a policy", tag=tag),
            },
        }.items()
    },
    **{
        path: {
            "GET": Operation(f"Export {what}", reference("definitions"), **_ADMIN),
            "POST": Operation(
                f"Import {what}",
                reference("import"),
                body="definitions",
                query=_DRY_RUN,
                more=(204,),
                **_ADMIN,
            ),
        }
        for path, what in (
            ("/api/definitions", "all definitions"),
            ("/api/definitions/{vhost}", "definitions of a virtual host"),
        )
    },
}

_NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
_OF_A_GROUP: Final[Query] = {
    "group": (_TEXT, "The group as which a stream is read."),
    "subject": (_TEXT, "What the group reads, if groups of one name read several."),
}
_FROM: Final[Query] = {"from": (_NUMBER, "The first offset.")}
_CONTENTS: Final[Table] = {
    "/api/queues/{vhost}/{name}/map": {
        "GET": Operation(
            "Show where the unsettled messages are",
            reference("map"),
            query={
                "cells": (_NUMBER, "Number of cells."),
                "to": (_NUMBER, "The offset at which the map ends."),
                "limit": (_NUMBER, "Number of entries of each list."),
                **_FROM,
                **_OF_A_GROUP,
            },
        )
    },
    "/api/queues/{vhost}/{name}/messages": {
        "GET": Operation(
            "Show messages without touching them",
            reference("peek"),
            query={
                "count": (_NUMBER, "Number of messages."),
                "key": (_TEXT, "Only messages with this routing key."),
                "message_id": (_TEXT, "Only messages with this id."),
                "state": (_TEXT, "Only messages in these states: `ready,delayed`."),
                "use_regex": (_SWITCH, "Whether filters are regular expressions."),
                "encoding": ({"type": "string", "enum": ["auto", "base64"]}, "Form of payloads."),
                "truncate": (_NUMBER, "Bytes of a payload that are shown."),
                **_FROM,
                **_OF_A_GROUP,
            },
        )
    },
    "/api/queues/{vhost}/{name}/messages/timeline": {
        "GET": Operation(
            "Tell what has happened to the messages with an id",
            reference("timelines"),
            query={"message_id": (_TEXT, "The id."), **_FROM, **_OF_A_GROUP},
        )
    },
    "/api/queues/{vhost}/{name}/messages/{offset}/timeline": {
        "GET": Operation("Tell what has happened to a message", reference("timeline"), query=_OF_A_GROUP)
    },
    "/api/stuck": {
        "GET": Operation(
            "Show stuck consumers and redelivery loops",
            reference("stuck"),
            query={
                "age_s": (_NUMBER, "How old the oldest delivery must be."),
                "returns": (_NUMBER, "How often a message must have come back."),
                "limit": (_NUMBER, "Number of entries of each list."),
            },
        )
    },
}

OPERATIONS: Final[Mapping[str, Mapping[str, Operation]]] = {
    **_NODE,
    **_CONTENTS,
    **_CLIENTS,
    **_MESSAGING,
    **_GROUPS,
    **_USERS,
    **_SETTINGS,
}
"""By path and method."""
