"""The HTTP API as an ASGI application over a broker: its routes, and how handlers are called.

    app = create_app(broker, changed=turns.begin)

Owns the table of routes; each resource has a file of its own. The rule: handlers are plain functions called
on the event loop that owns the broker, never in a thread. So a handler sees one state of the broker, and must
be short (`listings.reply_listed` makes long answers). A handler that changes a group, a topic or a user
gets the body of the request, and its answer is sent when the change is on disk. Only `/health` needs no
login.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.fronts.http.aliveness import Aliveness
from leveret.fronts.http.auth import log_in
from leveret.fronts.http.bindings import Bindings
from leveret.fronts.http.connections import Connections
from leveret.fronts.http.durability_wait import Durability
from leveret.fronts.http.errors import answer, problem_of
from leveret.fronts.http.exchanges import Exchanges
from leveret.fronts.http.groups import Groups
from leveret.fronts.http.health import show_health
from leveret.fronts.http.health_checks import HealthChecks
from leveret.fronts.http.limits import ApiLimits
from leveret.fronts.http.messages import PUBLISH_BYTES_MAX, Messages
from leveret.fronts.http.metrics import Metrics
from leveret.fronts.http.node_facts import NodeFacts
from leveret.fronts.http.nodes import Nodes
from leveret.fronts.http.overview import Overview
from leveret.fronts.http.path_segments import RawPaths
from leveret.fronts.http.policies import Policies
from leveret.fronts.http.queues import Queues
from leveret.fronts.http.request_bodies import Body, body_of
from leveret.fronts.http.topics import Topics
from leveret.fronts.http.users import Users

Handler: TypeAlias = Callable[[Request, User], Response | Awaitable[Response]]
Change: TypeAlias = Callable[[Request, User, Body], Response | Awaitable[Response]]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Login: TypeAlias = Callable[[Request], Awaitable[User]]


def create_app(
    broker: Broker,
    *,
    changed: Callable[[], None],
    node: Callable[[], NodeFacts] = NodeFacts,
    limits: ApiLimits = ApiLimits(),  # noqa: B008  (frozen)
) -> Starlette:
    """Return the application. `changed` is called before a handler changes the broker: it begins a turn.

    `node` returns the facts that only the server knows.
    """
    durability = Durability(broker, changed=changed, wait_s=limits.durability_timeout_s)
    topics = Topics(broker, changed=changed)
    groups = Groups(broker, changed=changed, durable=durability.reached)

    async def login(request: Request) -> User:
        return await log_in(broker, request, changed=changed)

    def private(handler: Handler) -> Endpoint:
        return _private(handler, login)

    def changing(handler: Change, *, bytes_max: int | None = None) -> Endpoint:
        most = limits.body_max_bytes if bytes_max is None else bytes_max
        return _change(handler, login, durability, bytes_max=most, is_long=bytes_max is not None)

    one_topic, one_group = "/api/topics/{vhost}/{name}", "/api/groups/{vhost}/{group}"
    return Starlette(
        routes=[
            Route("/health", _public(partial(show_health, broker))),
            *_routes_of_metrics(Metrics(broker, node=node), private),
            Route("/api/overview", private(Overview(broker, node=node).show)),
            *_routes_of_queues(broker, changed, private, changing),
            *_routes_of_exchanges(broker, changed, private, changing),
            Route("/api/topics", private(topics.show_all)),
            Route("/api/topics/{vhost}", private(topics.show_vhost)),
            _by_method(
                one_topic,
                GET=private(topics.show),
                PUT=changing(topics.put),
                DELETE=changing(topics.delete),
            ),
            Route("/api/groups", private(groups.show_all)),
            Route("/api/groups/{vhost}", private(groups.show_vhost)),
            _by_method(
                one_group,
                GET=private(groups.show),
                PUT=changing(groups.put),
                PATCH=changing(groups.change),
                DELETE=changing(groups.delete),
            ),
            Route(f"{one_group}/seek", changing(groups.seek), methods=["POST"]),
            Route(f"{one_group}/skip", changing(groups.skip), methods=["POST"]),
            Route(f"{one_group}/pause", changing(groups.pause), methods=["POST"]),
            Route(f"{one_group}/resume", changing(groups.resume), methods=["POST"]),
            Route(f"{one_group}/redrive", changing(groups.redrive), methods=["POST"]),
            *_routes_of_connections(Connections(broker, changed=changed), private, changing),
            *_routes_of_nodes(Nodes(broker, changed=changed, node=node), private, changing),
            Route("/api/aliveness-test/{vhost}", private(Aliveness(broker, changed=changed).check)),
            *_routes_of_health_checks(HealthChecks(broker, node=node), private),
            *_routes_of(Users(broker, changed=changed), private, changing),
            *_routes_of_policies(Policies(broker, operator=False, changed=changed), private, changing),
            *_routes_of_policies(Policies(broker, operator=True, changed=changed), private, changing),
        ],
        middleware=[Middleware(RawPaths)],
        exception_handlers={HTTPException: answer, Exception: answer},
    )


def _routes_of_queues(
    broker: Broker,
    changed: Callable[[], None],
    private: Callable[[Handler], Endpoint],
    changing: Callable[[Change], Endpoint],
) -> list[Route]:
    queues, messages = Queues(broker, changed=changed), Messages(broker, changed=changed)
    one_queue = "/api/queues/{vhost}/{name}"
    return [
        Route("/api/queues", private(queues.show_all)),
        Route("/api/queues/{vhost}", private(queues.show_vhost)),
        _by_method(
            one_queue, GET=private(queues.show), PUT=changing(queues.put), DELETE=changing(queues.delete)
        ),
        Route(f"{one_queue}/bindings", private(queues.show_bindings)),
        Route(f"{one_queue}/contents", private(queues.purge), methods=["DELETE"]),
        Route(f"{one_queue}/get", changing(messages.get), methods=["POST"]),
        Route(f"{one_queue}/actions", changing(queues.act), methods=["POST"]),
        Route(f"{one_queue}/queries/{{query}}", private(queues.release), methods=["DELETE"]),
    ]


def _routes_of_exchanges(
    broker: Broker,
    changed: Callable[[], None],
    private: Callable[[Handler], Endpoint],
    changing: Callable[..., Endpoint],
) -> list[Route]:
    exchanges, bindings = Exchanges(broker, changed=changed), Bindings(broker, changed=changed)
    publish = changing(Messages(broker, changed=changed).publish, bytes_max=PUBLISH_BYTES_MAX)
    one_exchange = "/api/exchanges/{vhost}/{name}"
    between = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
    return [
        Route("/api/exchanges", private(exchanges.show_all)),
        Route("/api/exchanges/{vhost}", private(exchanges.show_vhost)),
        _by_method(
            one_exchange,
            GET=private(exchanges.show),
            PUT=changing(exchanges.put),
            DELETE=changing(exchanges.delete),
        ),
        Route(f"{one_exchange}/bindings/source", private(exchanges.show_bindings_from)),
        Route(f"{one_exchange}/bindings/destination", private(exchanges.show_bindings_to)),
        Route(f"{one_exchange}/publish", publish, methods=["POST"]),
        Route("/api/bindings", private(bindings.show_all)),
        Route("/api/bindings/{vhost}", private(bindings.show_vhost)),
        _by_method(between, GET=private(bindings.show_between), POST=changing(bindings.post)),
        _by_method(
            f"{between}/{{properties_key}}",
            GET=private(bindings.show),
            DELETE=changing(bindings.delete),
        ),
    ]


def _routes_of(
    users: Users, private: Callable[[Handler], Endpoint], changing: Callable[[Change], Endpoint]
) -> list[Route]:
    return [
        Route("/api/whoami", private(users.show_self)),
        Route("/api/users", private(users.show_all)),
        _by_method(
            "/api/users/{name}",
            GET=private(users.show),
            PUT=changing(users.put),
            DELETE=changing(users.delete),
        ),
        Route("/api/permissions", private(users.show_permissions)),
        Route("/api/permissions/{vhost}", private(users.show_permissions_in)),
        _by_method(
            "/api/permissions/{vhost}/{name}",
            GET=private(users.show_permission),
            PUT=changing(users.permit),
            DELETE=changing(users.forbid),
        ),
    ]


def _routes_of_metrics(metrics: Metrics, private: Callable[[Handler], Endpoint]) -> list[Route]:
    return [
        Route("/metrics", private(metrics.show_sums)),
        Route("/metrics/per-object", private(metrics.show_objects)),
        Route("/metrics/detailed", private(metrics.show_detailed)),
    ]


def _routes_of_connections(
    connections: Connections, private: Callable[[Handler], Endpoint], changing: Callable[[Change], Endpoint]
) -> list[Route]:
    return [
        Route("/api/connections", private(connections.show_all)),
        Route("/api/vhosts/{vhost}/connections", private(connections.show_vhost)),
        _by_method(
            "/api/connections/username/{username}",
            GET=private(connections.show_of_user),
            DELETE=changing(connections.close_of_user),
        ),
        _by_method(
            "/api/connections/{name}",
            GET=private(connections.show),
            DELETE=changing(connections.close),
        ),
        Route("/api/connections/{name}/channels", private(connections.show_channels_of)),
        Route("/api/channels", private(connections.show_channels)),
        Route("/api/vhosts/{vhost}/channels", private(connections.show_channels_in)),
        Route("/api/channels/{name}", private(connections.show_channel)),
        Route("/api/consumers", private(connections.show_consumers)),
        Route("/api/consumers/{vhost}", private(connections.show_consumers_in)),
    ]


def _routes_of_nodes(
    nodes: Nodes, private: Callable[[Handler], Endpoint], changing: Callable[[Change], Endpoint]
) -> list[Route]:
    return [
        Route("/api/nodes", private(nodes.show_all)),
        Route("/api/nodes/{name}", private(nodes.show)),
        Route("/api/nodes/{name}/memory", private(nodes.show_memory)),
        Route("/api/nodes/{name}/memory/relative", private(nodes.show_relative_memory)),
        _by_method(
            "/api/cluster-name",
            GET=private(nodes.show_cluster_name),
            PUT=changing(nodes.put_cluster_name),
        ),
        Route("/api/extensions", private(nodes.show_extensions)),
        Route("/api/feature-flags", private(nodes.show_feature_flags)),
        Route("/api/rebalance/queues", changing(nodes.rebalance), methods=["POST"]),
        _by_method(
            "/api/auth/attempts/{name}",
            GET=private(nodes.show_logins),
            DELETE=private(nodes.forget_logins),
        ),
        _by_method(
            "/api/auth/attempts/{name}/source",
            GET=private(nodes.show_logins_by_source),
            DELETE=private(nodes.forget_logins_by_source),
        ),
    ]


def _routes_of_health_checks(checks: HealthChecks, private: Callable[[Handler], Endpoint]) -> list[Route]:
    handlers: dict[str, Handler] = {
        "alarms": checks.check_alarms,
        "local-alarms": checks.check_local_alarms,
        "certificate-expiration/{within}/{unit}": checks.check_certificates,
        "port-listener/{port}": checks.check_port,
        "protocol-listener/{protocol}": checks.check_protocol,
        "virtual-hosts": checks.check_vhosts,
        "node-is-mirror-sync-critical": checks.check_other_nodes,
        "node-is-quorum-critical": checks.check_other_nodes,
    }
    return [Route(f"/api/health/checks/{name}", private(handler)) for name, handler in handlers.items()]


def _routes_of_policies(
    policies: Policies, private: Callable[[Handler], Endpoint], changing: Callable[[Change], Endpoint]
) -> list[Route]:
    return [
        Route(policies.path, private(policies.show_all)),
        Route(f"{policies.path}/{{vhost}}", private(policies.show_vhost)),
        _by_method(
            f"{policies.path}/{{vhost}}/{{name}}",
            GET=private(policies.show),
            PUT=changing(policies.put),
            DELETE=changing(policies.delete),
        ),
    ]


def _public(handle: Callable[[], Response]) -> Endpoint:
    """Return an endpoint without login; a coroutine, because Starlette calls plain functions in threads."""

    async def endpoint(request: Request) -> Response:
        with _errors_as_problems():
            return handle()

    return endpoint


def _private(handler: Handler, login: Login) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        with _errors_as_problems():
            result = handler(request, await login(request))
            return await result if isawaitable(result) else result

    return endpoint


def _change(
    handler: Change, login: Login, durability: Durability, *, bytes_max: int, is_long: bool
) -> Endpoint:
    """Return an endpoint that reads the body before the login, and answers when the change is on disk.

    A long body is read only from a user who can log in.
    """

    async def endpoint(request: Request) -> Response:
        if is_long:
            await login(request)
        body = await body_of(request, bytes_max=bytes_max)
        with _errors_as_problems():
            user = await login(request)
            before = durability.last_change
            result = handler(request, user, body)
            response = await result if isawaitable(result) else result
        await durability.reached(since=before)
        return response

    return endpoint


@contextmanager
def _errors_as_problems() -> Iterator[None]:
    """Turn errors of the broker and the store into a `Problem`; other exceptions stay as they are."""
    try:
        yield
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            raise
        raise problem from error


def _by_method(path: str, **endpoints: Endpoint) -> Route:
    """Return one route for all methods of a path, so that a 405 lists all of them."""

    async def endpoint(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, endpoint, methods=list(endpoints))
