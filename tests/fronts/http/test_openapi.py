"""The OpenAPI document: valid, complete, and true about rights. `Api.ask` compares all answers with it."""

from openapi_spec_validator import validate
from starlette.routing import Route

from leveret.fronts.http.openapi import document
from tests.rights import http_table

TAGS = {
    http_table.ADMINISTRATOR: "administrator",
    http_table.POLICYMAKER: "policymaker",
    http_table.MONITOR: "monitoring",
}


def test_the_document_is_valid_and_shown_to_users(api):
    shown = api.get("/api/openapi.json").json
    validate(shown)
    assert shown == document()
    assert api.get("/api/openapi.json", None).status == 401


def test_every_route_is_in_the_document_and_the_other_way_round(api):
    routes = {
        (route.path, method.lower())
        for route in api.app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == {
        (path, method) for path, operations in document()["paths"].items() for method in operations
    }


def test_the_document_names_the_tags_that_the_table_of_rights_has():
    # An owner may close connections without a tag.
    without = "/api/connections/username/{username}"
    rows = [row for row in http_table.ROWS if row.route != without]
    for row in rows:
        operation = document()["paths"][row.route][row.method.lower()]
        needed = [TAGS[need] for need in row.needs if need in TAGS]
        ways = [] if row.is_open else [{"password": needed}, {"token": needed}]
        assert operation["security"] == ways, row


def test_operations_have_names_of_their_own():
    names = [each["operationId"] for path in document()["paths"].values() for each in path.values()]
    assert len(names) == len(set(names))
