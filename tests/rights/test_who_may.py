"""Every user of the table does everything that the table has, on every port; a new operation needs a row.

What each operation needs is in `amqp_table.py`, `http_table.py` and `flight_table.py`. The users are in
`roles.py`. What a user is answered follows from both: the text names the first need that it does not meet.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pyarrow import flight
from starlette.routing import Route

from leveret.flight import actions, tickets
from leveret.fronts.amqp.methods import HANDLERS
from leveret.fronts.http.app import create_app
from leveret.testing.broker import Broker
from tests.compatibility import methods
from tests.fronts.flight.flight_client import Bulk, refusal
from tests.rights import amqp_table, flight_table, http_table
from tests.rights.brokers import AmqpSide, Leveret
from tests.rights.names import Names
from tests.rights.roles import IN_THE_VHOST, OK, PASSWORD, ROLES, answer, missing

pytestmark = pytest.mark.real

ON_RABBITMQ = [row for row in amqp_table.ROWS if not row.is_ours]
ENTER = ("enter vhost /",)
REFUSED = "refused"


def expected(row: Any, numbered: dict[str, Any]) -> dict[str, str]:
    return {role: answer(role, names.filled(row.needs)) for role, names in numbered.items()}


# AMQP


def answers(side: AmqpSide, row: amqp_table.Row, leveret: Leveret | None = None) -> None:
    """Compare what every user is answered with the table."""
    numbered = {role: next(side.names) for role in IN_THE_VHOST}
    found = {}
    for role, names in numbered.items():
        with side.prepared(names):
            if leveret is not None and row.is_ours:
                leveret.make_group(names)
            found[role] = side.attempt(role, row.act, names)
    assert found == expected(row, numbered)


@pytest.mark.parametrize("row", amqp_table.ROWS, ids=str)
def test_a_user_does_over_amqp_what_the_table_permits(row, leveret_side):
    answers(leveret_side.amqp, row, leveret_side)


@pytest.mark.needs_rabbitmq
@pytest.mark.parametrize("row", ON_RABBITMQ, ids=str)
def test_rabbitmq_permits_the_same(row, rabbitmq_side):
    answers(rabbitmq_side, row)


def test_a_user_without_permissions_does_not_enter_a_virtual_host(leveret_side):
    found = {role: leveret_side.amqp.entering(role) for role in ROLES}
    assert found == {role: answer(role, ENTER) for role in ROLES}


@pytest.mark.needs_rabbitmq
def test_rabbitmq_lets_the_same_users_enter(rabbitmq_side):
    found = {role: rabbitmq_side.entering(role) for role in ROLES}
    assert found == {role: answer(role, ENTER) for role in ROLES}


def test_every_amqp_method_that_a_client_sends_is_in_the_table():
    claims = [claim for section in methods.SECTIONS for claim in section.claims if claim.state.needs_a_test]
    claimed = {claim.name for claim in claims if claim.columns[0] in (methods.CLIENT, methods.BOTH)}
    handled = {_spoken(method.name) for method in HANDLERS}
    in_the_table = {row.method for row in amqp_table.ROWS}
    assert claimed | handled == in_the_table | set(amqp_table.WITHOUT_A_RIGHT)
    assert not in_the_table & set(amqp_table.WITHOUT_A_RIGHT)


def _spoken(name: str) -> str:
    """As the specification has it: `Basic.RecoverAsync` is `basic.recover-async`."""
    return name.replace("RecoverAsync", "recover-async").lower()


# HTTP


@pytest.mark.parametrize("row", http_table.ROWS, ids=str)
def test_a_user_does_over_http_what_the_table_permits(row, leveret_side):
    numbered = {role: next(leveret_side.amqp.names) for role in ROLES}
    found, wanted = {}, {}
    for role, names in numbered.items():
        prepare_http(leveret_side, row, names)
        filled = names.in_paths | {
            "port": str(leveret_side.broker.port),
            "node": leveret_side.broker.server.broker.node,
        }
        if "{connection}" in row.fills:
            filled["connection"] = leveret_side.amqp.connection_of_owner()
        user = f"{role}:{PASSWORD}"
        asked = leveret_side.api.ask(row.method, row.path(filled), user, body=row.body)
        found[role] = asked.status if asked.status >= 300 else OK
        wanted[role] = http_answer(role, row, names) or OK
    assert found == wanted


@pytest.mark.needs_rabbitmq
@pytest.mark.parametrize("row", [row for row in http_table.ROWS if not row.is_ours], ids=str)
def test_rabbitmq_permits_the_same_over_http(row, rabbitmq_http):
    found, wanted = {}, {}
    for role in ROLES:
        names = next(rabbitmq_http.amqp.names)
        rabbitmq_http.prepare(row, names)
        found[role] = rabbitmq_http.attempt(role, row, names)
        status = http_answer(role, row, names)
        wanted[role] = OK if status is None else REFUSED if status == 401 else f"status {status}"
    assert found == wanted


def http_answer(role: str, row: http_table.Row, names: Names) -> int | None:
    """The status with which a user of this role is refused, or None."""
    need = missing(role, names.filled(row.needs))
    if row.is_open:
        return None
    if not ROLES[role].tag:
        return 401
    if need is None:
        return None
    return row.refused if need.startswith(("configure", "write", "read")) else 401


def prepare_http(side: Leveret, row: http_table.Row, names: Any) -> None:
    """What the row may need: see `http_table`."""
    path = row.route
    if "{name}" in path and "queues" in path:
        side.make_queue(names)
        side.make_query(names)
    if path.startswith(("/api/exchanges", "/api/bindings")):
        side.make_queue(names)
        side.amqp.root.exchange_declare(names.exchange, "direct")
        side.amqp.root.queue_bind(names.queue, names.exchange, "k")
    if "groups" in path:
        side.make_group(names)
    if "topics" in path:
        assert side.api.ask("PUT", f"/api/topics/%2F/{names.new}t", body={"partitions": 1}).status == 201
    if path.startswith("/api/vhosts/{name}"):
        assert side.api.ask("PUT", f"/api/vhosts/{names.query}").status == 201
    if "users" in path or "permissions" in path:
        assert (
            side.api.ask("PUT", f"/api/users/{names.query}", body={"password": "x", "tags": ""}).status == 201
        )
        rights = {"configure": "", "write": "", "read": ""}
        assert side.api.ask("PUT", f"/api/permissions/%2F/{names.query}", body=rights).status == 201
    for kind, rest, body in http_table.PREPARED:
        if path.startswith(f"/api/{kind}/"):
            prepared = f"/api/{kind}{rest}".format(vhost="%2F", query=names.query)
            assert side.api.ask("PUT", prepared, body=body).status == 201


def test_nobody_does_anything_over_http_without_a_login(leveret_side):
    filled = dict.fromkeys(next(leveret_side.amqp.names).in_paths, "x")
    for user in (None, "nobody:secret", "owner:wrong"):
        for row in http_table.ROWS:
            asked = leveret_side.api.ask(row.method, row.path(filled), user, body=row.body)
            assert asked.status == (200 if row.is_open else 401), row


def test_every_http_route_is_in_the_table():
    with Broker() as broker:
        app = create_app(broker.server.broker, changed=lambda: None)
    routes = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == {(row.method, row.route) for row in http_table.ROWS}


# Flight


@pytest.mark.parametrize("row", flight_table.ROWS, ids=str)
def test_a_user_does_over_flight_what_the_table_permits(row, leveret_side):
    with_picture = row.kind in (actions.DropPicture, tickets.PieceTicket)
    numbered = {role: next(leveret_side.amqp.names) for role in ROLES}
    found = {}
    for role, names in numbered.items():
        given = leveret_side.given(names, with_picture=with_picture)
        found[role] = told(leveret_side.bulk(role), row, given)
    assert found == expected(row, numbered)


def told(bulk: Bulk, row: flight_table.Row, given: flight_table.Given) -> str:
    try:
        answered = row.call(bulk, given)
    except flight.FlightServerError as error:
        answered = refusal(error)
    return str(answered.text) if isinstance(answered, actions.Refused) else OK


def test_nobody_does_anything_over_flight_without_a_login(leveret_side):
    given = flight_table.Given(next(leveret_side.amqp.names), 1, 1, 1)
    assert leveret_side.broker.endpoint is not None
    for user, password in (("nobody", "secret"), ("owner", "wrong")):
        bulk = Bulk(leveret_side.broker.endpoint.port, user, password)
        for row in flight_table.ROWS:
            with pytest.raises(flight.FlightUnauthenticatedError):
                row.call(bulk, given)


def test_every_flight_request_is_in_the_table():
    tickets_and_descriptors = {
        each
        for each in vars(tickets).values()
        if isinstance(each, type) and each.__module__ == tickets.__name__
    }
    kinds = {row.kind for row in flight_table.ROWS}
    assert kinds == set(get_args(actions.Request)) | tickets_and_descriptors
