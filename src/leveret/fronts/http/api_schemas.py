"""JSON schemas of what the HTTP API reads and answers, by name: `SCHEMAS["queue"]`.

Owns the types of fields for the OpenAPI document. The handlers of each resource make and check the values
themselves; `tests/fronts/http/documented.py` holds every answer of the tests against these schemas. The rule:
a body's schema has a field as required, or refuses others, exactly where its handler does.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]


def _or_null(name: str) -> Schema:
    return {"type": [name, "null"]}


_TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
_TABLES: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_TYPES: Final[dict[str, Schema]] = {
    "text": {"type": "string"},
    "text?": _or_null("string"),
    "whole": {"type": "integer"},
    "whole?": _or_null("integer"),
    "number": {"type": "number"},
    "truth": {"type": "boolean"},
    "truth?": _or_null("boolean"),
    # RabbitMQ's tools send booleans and numbers as strings.
    "truthlike": {"enum": [True, False, "true", "false"]},
    "wholelike": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]{1,9}$"}]},
    "table": {"type": "object"},
    # As RabbitMQ, for an object without fields.
    "table[]": {"anyOf": [{"type": "object"}, {"type": "array", "maxItems": 0}]},
    "texts": _TEXTS,
    "tables": _TABLES,
    "tags": {"anyOf": [_TEXTS, {"type": "string"}]},
    "any": {},
}


def _fields(listed: str, *, required: str = "", closed: bool = False) -> Schema:
    """Return the schema of an object from a short form of its fields.

    >>> _fields("name,vhost:text durable:truth", required="name")["required"]
    ['name']
    """
    properties: Schema = {}
    for group in listed.split():
        names, _, type_ = group.partition(":")
        properties |= dict.fromkeys(names.split(","), _TYPES[type_])
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    if closed:
        schema["additionalProperties"] = False
    return schema


SCHEMAS: Final[dict[str, Schema]] = {
    "problem": {
        "type": "object",
        "required": ["error", "reason"],
        "properties": {"error": {"type": "string"}, "reason": {"type": ["string", "array"]}},
    },
    "health": _fields("status:text reasons:texts", required="status"),
    "check": _fields("status,reason:text", required="status"),
    "overview": _fields(
        "management_version,rates_mode,product_version,product_name,rabbitmq_version,cluster_name,node:text"
        " message_stats,churn_rates,queue_totals,object_totals,nacked:table listeners,contexts:tables"
    ),
    "token": _fields("token,user:text expires_in:whole tags:texts", required="token expires_in user tags"),
    "whoami": _fields("name:text tags:texts", required="name tags"),
    "name": _fields("name:text"),
    "node": _fields(
        "name,type,os_pid,rates_mode:text running,mem_alarm,disk_free_alarm:truth uptime,processors:whole"
        " exchange_types,auth_mechanisms,applications,contexts:tables log_files,config_files:texts"
    ),
    "memory": _fields("memory:table"),
    "flag": _fields("name,desc,state,stability,provided_by:text"),
    "attempts": _fields(
        "protocol:text auth_attempts,auth_attempts_failed,auth_attempts_succeeded:whole",
    ),
    "connection": _fields(
        "name,node,type,protocol,state,user,vhost,user_provided_name:text"
        " channels,channel_max,frame_max,timeout,connected_at,port,peer_port:whole"
        " recv_oct,recv_cnt,send_oct,send_cnt,send_pend:whole"
        " host,peer_host:text client_properties,recv_oct_details,send_oct_details:table ssl:truth"
        " ssl_protocol,ssl_cipher,peer_cert_subject,peer_cert_issuer,peer_cert_validity:text?"
    ),
    "channel": _fields(
        "name,node,user,vhost,state,idle_since:text number,consumer_count,prefetch_count:whole"
        " messages_unacknowledged,messages_unconfirmed,messages_uncommitted,acks_uncommitted:whole"
        " confirm,transactional:truth connection_details,message_stats,nacked:table consumer_details:tables"
    ),
    "consumer": _fields(
        "consumer_tag,activity_status:text active,ack_required,exclusive:truth prefetch_count:whole"
        " queue,channel_details:table arguments:table"
    ),
    "queue": _fields(
        "name,vhost,type,state,node:text durable,auto_delete,exclusive:truth arguments:table"
        " consumers,messages,messages_ready,messages_unacknowledged,delayed,returned,low,span:whole"
        " memory:whole policy,operator_policy,exclusive_consumer_tag,single_active_consumer_tag:text?"
        " effective_policy_definition,message_stats,messages_details,owner_pid_details:table"
        " queries,consumer_details:tables groups:texts first_offset,last_offset:whole? bytes:whole"
    ),
    "map": _fields("", required="cells"),
    "peek": _fields("messages:tables scanned:whole next:whole?", required="messages scanned next"),
    "timeline": _fields("events:tables", required="events"),
    "timelines": _fields("timelines:tables scanned:whole next:whole?", required="timelines scanned next"),
    "stuck": {"type": "object"},
    "queue declaration": _fields("durable,auto_delete,exclusive:truthlike arguments:table[]"),
    "queue action": {
        "type": "object",
        "required": ["action"],
        "properties": {"action": {"enum": ["sync", "cancel_sync"]}},
    },
    "get": {
        "type": "object",
        "required": ["count", "ackmode", "encoding"],
        "properties": {
            "count": _TYPES["wholelike"],
            "truncate": _TYPES["wholelike"] | {"description": "Bytes of a payload that are shown."},
            "encoding": {"enum": ["auto", "base64"]},
            "ackmode": {
                "enum": [
                    *("ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false")
                ]
            },
        },
    },
    "message": _fields(
        "payload,payload_encoding,exchange,routing_key:text payload_bytes,message_count:whole"
        " redelivered:truth properties:table[]",
        required="payload payload_encoding payload_bytes redelivered exchange routing_key message_count",
    ),
    "publication": {
        "type": "object",
        "required": ["routing_key", "properties", "payload", "payload_encoding"],
        "properties": {
            "routing_key": {"type": "string", "maxLength": 255},
            "properties": _TYPES["table[]"],
            "payload": {"type": "string"},
            "payload_encoding": {"enum": ["string", "base64"]},
        },
    },
    "routed": _fields("routed:truth", required="routed"),
    "exchange": _fields(
        "name,vhost,type,policy:text durable,auto_delete,internal:truth arguments,message_stats:table"
    ),
    "exchange declaration": _fields(
        "type:text? durable,auto_delete,internal:truthlike arguments:table[]",
    ),
    "binding": _fields(
        "source,vhost,destination,destination_type,routing_key,properties_key:text arguments:table"
    ),
    "new binding": _fields("routing_key:text? arguments:table[]"),
    "topic": _fields(
        "vhost,name:text partitions,groups:any messages,bytes:whole max_bytes:whole?",
        required="vhost name partitions messages bytes groups max_age max_bytes",
    ),
    "topic settings": _fields("partitions,max_bytes:whole? max_age:text?", closed=True),
    "group": _fields("vhost,name,subject,mode:text", required="vhost name subject mode"),
    "new group": _fields(
        "subject:text start,mode,max_span,consume_timeout_ms,max_reconsume,delays,first_level,paused:any",
        required="subject",
        closed=True,
    ),
    "group settings": _fields(
        "mode,max_span,consume_timeout_ms,max_reconsume,delays,first_level,paused:any", closed=True
    ),
    "seek": _fields("to,offset,time:any partition,reason:text?", closed=True) | {"minProperties": 1},
    "skip": _fields("offset:whole partition,reason:text?", required="offset", closed=True),
    "redrive": _fields("limit:whole?", closed=True),
    "nothing": _fields("", closed=True),
    "seeked": _fields("partitions:table", required="partitions"),
    "skipped": _fields("partition:text offset,watermark:whole", required="partition offset watermark"),
    "redriven": _fields("redriven,gone,left:whole", required="redriven gone left"),
    "user": _fields(
        "name,password_hash,hashing_algorithm:text tags:texts limits:table",
        required="name password_hash hashing_algorithm tags limits",
    ),
    "new user": _fields(
        "password,password_hash,hashing_algorithm:text? tags:tags limits,name,vhost:any",
        required="tags",
        closed=True,
    ),
    "user names": _fields("users:texts", required="users", closed=True),
    "permission": _fields("user,vhost,configure,write,read:text", required="user vhost configure write read"),
    "new permission": _fields(
        "configure,write,read:text user,vhost:any", required="configure write read", closed=True
    ),
    "topic permission": _fields(
        "user,vhost,exchange,write,read:text", required="user vhost exchange write read"
    ),
    "new topic permission": _fields(
        "exchange,write,read:text user,vhost:any", required="exchange write read", closed=True
    ),
    "parameter": _fields("vhost,component,name:text value:any", required="vhost component name value"),
    "global parameter": _fields("name:text value:any", required="name value"),
    "new parameter": _fields("value,name,vhost,component:any", required="value", closed=True),
    "new global parameter": _fields("value,name:any", required="value", closed=True),
    "vhost": _fields(
        "name,description,default_queue_type:text tags:texts tracing:truth metadata,cluster_state:table"
        " messages,messages_ready,messages_unacknowledged,delayed:whole",
        required="name description tags tracing messages",
    ),
    "new vhost": _fields(
        "description,default_queue_type:text? tags:tags tracing:any name,vhost:any", closed=True
    ),
    "limits": _fields("user,vhost:text value:table", required="value"),
    "new limit": _fields("value:whole name,vhost,user:any", required="value", closed=True),
    "policy": _fields(
        "vhost,name,pattern,apply-to:text definition:table priority:whole",
        required="vhost name pattern apply-to definition priority",
    ),
    "new policy": {
        "type": "object",
        "required": ["pattern", "definition"],
        "additionalProperties": False,
        "properties": {
            "pattern": {"type": "string", "format": "regex"},
            "definition": {"type": "object", "minProperties": 1},
            "priority": {"type": "integer"},
            "apply-to": {"enum": ["queues", "exchanges", "all"]},
            "name": _TYPES["any"],
            "vhost": _TYPES["any"],
            "component": _TYPES["any"],
        },
    },
    "definitions": _fields(
        "users,vhosts,permissions,topic_permissions,parameters,global_parameters,policies:tables"
        " queues,exchanges,bindings:tables"
    ),
    "import": _fields("count:whole left_out:texts", required="left_out"),
}


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{key_of(name)}"}


def key_of(name: str) -> str:
    """Return the name of a schema in the document.

    >>> key_of("new topic permission")
    'NewTopicPermission'
    """
    return "".join(word.capitalize() for word in name.split())
