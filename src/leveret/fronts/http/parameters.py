"""`/api/parameters` and `/api/global-parameters`: JSON documents that RabbitMQ's tools set by name.

    GET    /api/parameters[/{component}[/{vhost}]]        without a component: all but policies
    GET    /api/parameters/{component}/{vhost}/{name}     one parameter
    PUT    /api/parameters/{component}/{vhost}/{name}     {"value": {"pattern": "^a", …}}
    DELETE /api/parameters/{component}/{vhost}/{name}
    GET    /api/global-parameters[/{name}]                parameters of the whole broker
    PUT    /api/global-parameters/{name}                  {"value": 5}
    DELETE /api/global-parameters/{name}

Paths, fields and statuses are RabbitMQ's. The tag `policymaker` or `administrator` is needed. The components
and what their values may be are left to `broker.parameters`.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import parameters
from leveret.broker.views.parameters import (
    GlobalParameterView,
    ParameterView,
    each_global_parameter,
    each_parameter,
    one_global_parameter,
    one_parameter,
)
from leveret.fronts.http.auth import check_policymaker, enter_as_policymaker, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import NotFound
from leveret.fronts.http.json_replies import jsonable, reply, reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import Body, check_fields, check_required

_FIELDS = ("value", "name", "vhost", "component")
"""RabbitMQ's tools repeat `name`, `vhost` and `component` in the body."""


class ParametersApi:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/parameters", make.reading(self.show_all)),
            Route("/api/parameters/{component}", make.reading(self.show_component)),
            Route("/api/parameters/{component}/{vhost}", make.reading(self.show_vhost)),
            make.by_method(
                "/api/parameters/{component}/{vhost}/{name}",
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
            Route("/api/global-parameters", make.reading(self.show_global)),
            make.by_method(
                "/api/global-parameters/{name}",
                GET=make.reading(self.show_one_global),
                PUT=make.changing(self.put_global),
                DELETE=make.changing(self.delete_global),
            ),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        check_policymaker(user)
        return self._listed(None, visible(self._broker, user))

    def show_component(self, request: Request, user: User) -> Response:
        check_policymaker(user)
        return self._listed(segment(request, "component"), visible(self._broker, user))

    def show_vhost(self, request: Request, user: User) -> Response:
        vhost = self._vhost(request, user)
        return self._listed(segment(request, "component"), [vhost])

    def show(self, request: Request, user: User) -> Response:
        vhost = self._vhost(request, user)
        component, name = segment(request, "component"), segment(request, "name")
        view = one_parameter(self._broker, component, vhost, name)
        if view is None:
            raise NotFound
        return reply(_described(view))

    def put(self, request: Request, user: User, body: Body) -> Response:
        vhost = self._vhost(request, user)
        check_fields(body, _FIELDS)
        check_required(body, ("value",))
        component, name = segment(request, "component"), segment(request, "name")
        is_new = parameters.put_parameter(
            self._broker, component, vhost, name, body["value"], begin=self._changed
        )
        return Response(status_code=201 if is_new else 204)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        vhost = self._vhost(request, user)
        component, name = segment(request, "component"), segment(request, "name")
        parameters.delete_parameter(self._broker, component, vhost, name, begin=self._changed)
        return Response(status_code=204)

    def _vhost(self, request: Request, user: User) -> str:
        return enter_as_policymaker(self._broker, user, segment(request, "vhost"))

    def _listed(self, component: str | None, vhosts: list[str]) -> Response:
        views = (view for view in each_parameter(self._broker, component) if view.vhost in vhosts)
        return reply_list(map(_described, views))

    # global parameters

    def show_global(self, request: Request, user: User) -> Response:
        check_policymaker(user)
        return reply_list(map(_global, each_global_parameter(self._broker)))

    def show_one_global(self, request: Request, user: User) -> Response:
        check_policymaker(user)
        view = one_global_parameter(self._broker, segment(request, "name"))
        if view is None:
            raise NotFound
        return reply(_global(view))

    def put_global(self, request: Request, user: User, body: Body) -> Response:
        check_policymaker(user)
        check_fields(body, ("value", "name"))
        check_required(body, ("value",))
        name, value = segment(request, "name"), body["value"]
        is_new = parameters.put_global_parameter(self._broker, name, value, begin=self._changed)
        return Response(status_code=201 if is_new else 204)

    def delete_global(self, request: Request, user: User, body: Body) -> Response:
        check_policymaker(user)
        name = segment(request, "name")
        parameters.delete_global_parameter(self._broker, name, begin=self._changed)
        return Response(status_code=204)


def _described(view: ParameterView) -> dict[str, object]:
    return {
        "value": jsonable(view.value),
        "vhost": text(view.vhost),
        "component": view.component,
        "name": text(view.name),
    }


def _global(view: GlobalParameterView) -> dict[str, object]:
    return {"name": text(view.name), "value": view.value}
