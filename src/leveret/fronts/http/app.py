"""The HTTP API as an ASGI application over a broker: its resources, and the layers around them.

    app = create_app(broker, changed=turns.begin)

Each resource has a file of its own with its routes and handlers; `endpoints` calls the handlers. The rule:
handlers are called on the event loop that owns the broker, never in a thread. So a handler sees one state of
the broker, and must be short (`json_replies.reply_list` makes long answers). A handler that changes something
gets the body of the request, and its answer is sent when the change is on disk. Only `/health` needs no
login.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.fronts.http.admin_actions import AdminActions, Record
from leveret.fronts.http.aliveness import Aliveness
from leveret.fronts.http.api_limits import ApiLimits
from leveret.fronts.http.auth import log_in
from leveret.fronts.http.bindings import Bindings
from leveret.fronts.http.connections import Connections
from leveret.fronts.http.definitions import Definitions
from leveret.fronts.http.durability_wait import Durability
from leveret.fronts.http.endpoints import Endpoints, Resource
from leveret.fronts.http.errors import answer
from leveret.fronts.http.exchanges import Exchanges
from leveret.fronts.http.groups import Groups
from leveret.fronts.http.health import show_health
from leveret.fronts.http.health_checks import HealthChecks
from leveret.fronts.http.limits import Limits
from leveret.fronts.http.logins import LoginsApi
from leveret.fronts.http.messages import Messages
from leveret.fronts.http.metrics import Metrics
from leveret.fronts.http.node_facts import NodeFacts
from leveret.fronts.http.nodes import Nodes
from leveret.fronts.http.openapi import OpenApi
from leveret.fronts.http.overview import Overview
from leveret.fronts.http.parameters import ParametersApi
from leveret.fronts.http.path_segments import RawPaths
from leveret.fronts.http.policies import Policies
from leveret.fronts.http.queue_contents import QueueContents
from leveret.fronts.http.queues import Queues
from leveret.fronts.http.topic_permissions import TopicPermissions
from leveret.fronts.http.topics import Topics
from leveret.fronts.http.users import Users
from leveret.fronts.http.vhosts import Vhosts


def create_app(
    broker: Broker,
    *,
    changed: Callable[[], None],
    record: Record | None = None,
    limits: ApiLimits = ApiLimits(),  # noqa: B008  (frozen)
    node: Callable[[], NodeFacts] = NodeFacts,
) -> Starlette:
    """Return the application. `changed` is called before a handler changes the broker: it begins a turn.

    `record` gets all requests that may change something. `node` returns the facts that only the server knows.
    """
    durability = Durability(broker, changed=changed, wait_s=limits.durability_timeout_s)

    async def login(request: Request) -> User:
        return await log_in(broker, request, changed=changed)

    users = Users(broker, changed=changed)
    resources: list[Resource] = [
        OpenApi(),
        Metrics(broker, node=node),
        Overview(broker, node=node),
        Queues(broker, changed=changed),
        QueueContents(broker),
        Messages(broker, changed=changed, wait_s=limits.durability_timeout_s),
        Exchanges(broker, changed=changed),
        Bindings(broker, changed=changed),
        Topics(broker, changed=changed),
        Groups(broker, changed=changed, durable=durability.reached),
        Connections(broker, changed=changed),
        Nodes(broker, changed=changed, node=node),
        Aliveness(broker, changed=changed, wait_s=limits.durability_timeout_s),
        HealthChecks(broker, node=node),
        LoginsApi(broker, token_life_s=limits.token_life_s),
        users,
        TopicPermissions(broker, changed=changed),
        ParametersApi(broker, changed=changed),
        Vhosts(broker, changed=changed),
        Limits(broker, of_users=False, changed=changed),
        Limits(broker, of_users=True, changed=changed),
        Policies(broker, operator=False, changed=changed),
        Policies(broker, operator=True, changed=changed),
        Definitions(broker, changed=changed, hash_password=users.hash_password),
    ]
    make = Endpoints(login, durability, limits)
    return Starlette(
        routes=[
            Route("/health", make.public(partial(show_health, broker))),
            *(route for resource in resources for route in resource.routes(make)),
        ],
        middleware=[Middleware(RawPaths), *([] if record is None else [Middleware(AdminActions, record)])],
        exception_handlers={HTTPException: answer, Exception: answer},
    )
