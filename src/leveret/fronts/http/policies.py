"""`/api/policies` and `/api/operator-policies`: settings for all queues and exchanges that match a pattern.

    GET    /api/policies[/{vhost}]        policies of the virtual hosts that the user may enter
    GET    /api/policies/{vhost}/{name}   one policy
    PUT    /api/policies/{vhost}/{name}   {"pattern": "^temp-", "definition": {"max-length": 100}}
    DELETE /api/policies/{vhost}/{name}

Operator policies have such routes under `/api/operator-policies`. Paths, fields and statuses are RabbitMQ's.
Every user of a virtual host may list its policies. The tag `policymaker` or `administrator` is needed to see
one of them or to change policies, the tag `administrator` to change operator policies. What a policy may hold
is left to `broker.vhosts.policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import policies
from leveret.broker.views.policies import PolicyView, one_policy, policies_in
from leveret.fronts.http.auth import check_administrator, enter, enter_as_policymaker, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import jsonable, reply, reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import Body, check_fields

_FIELDS = ("pattern", "definition", "priority", "apply-to", "name", "vhost", "component")
"""RabbitMQ's tools repeat `name`, `vhost` and `component` in the body."""


class Policies:
    def __init__(self, broker: Broker, *, operator: bool, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._operator = operator
        self._changed = changed
        self.path = "/api/operator-policies" if operator else "/api/policies"

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route(self.path, make.reading(self.show_all)),
            Route(f"{self.path}/{{vhost}}", make.reading(self.show_vhost)),
            make.by_method(
                f"{self.path}/{{vhost}}/{{name}}",
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        return self._listed(*visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Response:
        return self._listed(self._vhost(request, user))

    def show(self, request: Request, user: User) -> Response:
        vhost = self._vhost(request, user, is_restricted=True)
        policy = one_policy(self._broker, vhost, segment(request, "name"), operator=self._operator)
        if policy is None:
            raise NotFound
        return reply(_described(policy))

    def put(self, request: Request, user: User, body: Body) -> Response:
        vhost = self._vhost(request, user, is_restricted=True)
        check_fields(body, _FIELDS)
        name = segment(request, "name")
        is_new = policies.put_policy(
            self._broker, vhost, name, body, operator=self._operator, begin=self._changed
        )
        return Response(status_code=201 if is_new else 204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        vhost = self._vhost(request, user, is_restricted=True)
        name = segment(request, "name")
        policies.delete_policy(self._broker, vhost, name, operator=self._operator, begin=self._changed)
        return Response(status_code=204)

    def _vhost(self, request: Request, user: User, *, is_restricted: bool = False) -> str:
        """Return the virtual host of the path; raise if the user may not see, or change, policies there."""
        vhost = segment(request, "vhost")
        if not is_restricted:
            return enter(self._broker, user, vhost)
        if self._operator:
            check_administrator(user)
        return enter_as_policymaker(self._broker, user, vhost)

    def _listed(self, *vhosts: str) -> Response:
        lists = (policies_in(self._broker, vhost, operator=self._operator) for vhost in vhosts)
        return reply_list(map(_described, chain.from_iterable(lists)))


def _described(policy: PolicyView) -> dict[str, object]:
    document = {name: jsonable(value) for name, value in policy.document.items()}
    return {"vhost": text(policy.vhost), "name": text(policy.name), **document}
