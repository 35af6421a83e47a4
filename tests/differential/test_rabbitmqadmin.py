"""RabbitMQ's own `rabbitmqadmin`, as its management plugin serves it: it prints the same for both brokers."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.differential.management import Management
from tests.processes import WAIT_S

pytestmark = [pytest.mark.real, pytest.mark.needs_rabbitmq]

SHOWN = ("-f", "raw_json")
COMMANDS: list[tuple[str, ...]] = [
    ("declare", "queue", "name=admin-q", "durable=true", 'arguments={"x-max-length":5}'),
    ("declare", "queue", "name=admin-q", "durable=true", 'arguments={"x-max-length":5}'),
    ("declare", "queue", "name=admin-q", "durable=false"),
    ("declare", "queue", "name=admin-quorum", "queue_type=quorum"),
    ("declare", "queue", "name=admin-quorum", "queue_type=classic"),
    ("declare", "queue", "name=amq.admin"),
    ("declare", "queue", "durable=true"),
    ("declare", "exchange", "name=admin-x", "type=topic", "auto_delete=false"),
    ("declare", "exchange", "name=admin-y", "type=fanout", "durable=false", "internal=true"),
    ("declare", "exchange", "name=admin-x", "type=fanout"),
    ("declare", "exchange", "name=admin-x", "type=x-unheard-of"),
    ("declare", "binding", "source=admin-x", "destination=admin-q", "routing_key=a.*"),
    ("declare", "binding", "source=admin-x", "destination=admin-q", "routing_key=b/c d~"),
    ("declare", "binding", "source=admin-x", "destination_type=exchange", "destination=admin-y"),
    ("declare", "binding", "source=nope", "destination=admin-q"),
    ("list", "exchanges", "name", "type", "durable", "auto_delete", "internal"),
    ("list", "exchanges", "--sort=type", "--sort-reverse", "type"),
    ("list", "queues", "name", "durable", "arguments", "type"),
    ("-f", "kvp", "list", "queues", "name"),
    ("-f", "tsv", "list", "queues", "name", "auto_delete"),
    ("-f", "long", "list", "queues", "name"),
    ("-f", "bash", "list", "queues"),
    (*SHOWN, "list", "queues", "name", "exclusive"),
    ("list", "bindings", "source", "destination", "routing_key", "properties_key", "destination_type"),
    ("publish", "exchange=admin-x", "routing_key=a.b", "payload=hello"),
    ("publish", "exchange=admin-x", "routing_key=c", "payload=nowhere"),
    ("publish", "routing_key=admin-q", "payload=d29ybGQ=", "payload_encoding=base64"),
    ("publish", "routing_key=admin-q", "payload=x", 'properties={"content_type":"text/plain","headers":{}}'),
    ("publish", "routing_key=admin-q", "payload=x", 'properties={"priority":"high"}'),
    ("publish", "exchange=nope", "routing_key=admin-q", "payload=x"),
    ("get", "queue=admin-q", "ackmode=ack_requeue_false"),
    ("get", "queue=admin-q", "count=5", "ackmode=reject_requeue_false", "encoding=base64"),
    ("get", "queue=admin-q", "count=5"),
    ("get", "queue=nope"),
    ("publish", "routing_key=admin-q", "payload=again"),
    ("get", "queue=admin-q"),
    ("purge", "queue", "name=admin-q"),
    ("purge", "queue", "name=nope"),
    ("get", "queue=admin-q"),
    (
        *("delete", "binding", "source=admin-x", "destination_type=queue", "destination=admin-q"),
        "properties_key=a.*",
    ),
    (
        *("delete", "binding", "source=admin-x", "destination_type=queue", "destination=admin-q"),
        "properties_key=nope",
    ),
    ("list", "bindings", "source", "destination", "routing_key"),
    ("delete", "exchange", "name=admin-x"),
    ("delete", "exchange", "name=admin-y"),
    ("delete", "exchange", "name=amq.direct"),
    ("delete", "exchange", "name=nope"),
    ("delete", "queue", "name=admin-q"),
    ("delete", "queue", "name=admin-quorum"),
    ("delete", "queue", "name=nope"),
    ("list", "queues"),
    ("list", "nodes", "running", "type"),
    ("-f", "kvp", "show", "overview", "rates_mode", "rabbitmq_version"),
    ("list", "consumers"),
    ("close", "connection", "name=nope"),
]

SETTINGS: list[tuple[str, ...]] = [
    ("declare", "vhost", "name=admin-v"),
    ("declare", "vhost", "name=admin-v", "tracing=true"),
    ("-f", "tsv", "list", "vhosts", "name", "tracing"),
    ("declare", "user", "name=admin-u", "password=x", "tags=management,own"),
    ("declare", "user", "name=admin-u", "password_hash=", "tags="),
    ("-f", "tsv", "list", "users", "name", "tags", "hashing_algorithm"),
    ("declare", "permission", "vhost=admin-v", "user=admin-u", "configure=.*", "write=^a", "read="),
    ("-f", "tsv", "list", "permissions", "user", "vhost", "configure", "write", "read"),
    ("-V", "admin-v", "declare", "policy", "name=admin-p", "pattern=^a", 'definition={"max-length":1}'),
    (
        *("-V", "admin-v", "declare", "policy", "name=admin-p", "pattern=^a", "apply-to=queues"),
        *("priority=2", 'definition={"max-length":1}'),
    ),
    ("-V", "admin-v", "declare", "policy", "name=admin-q", "pattern=^a", 'definition={"max-foo":1}'),
    ("-f", "tsv", "list", "policies", "vhost", "name", "pattern", "apply-to", "priority", "definition"),
    ("-V", "admin-v", "declare", "operator_policy", "name=admin-o", "pattern=", 'definition={"expires":9}'),
    ("-f", "tsv", "list", "operator_policies", "vhost", "name", "pattern", "apply-to", "definition"),
    ("declare", "vhost_limit", "vhost=admin-v", "name=max-queues", "value=3"),
    ("declare", "vhost_limit", "vhost=admin-v", "name=max-foo", "value=3"),
    ("-f", "tsv", "list", "vhost_limits", "vhost", "value"),
    ("-V", "admin-v", "declare", "parameter", "component=nope", "name=admin-x", "value={}"),
    (
        *("-V", "admin-v", "declare", "parameter", "component=operator_policy", "name=admin-r"),
        'value={"pattern":"","definition":{"expires":5},"priority":0,"apply-to":"queues"}',
    ),
    ("-f", "tsv", "list", "parameters", "vhost", "component", "name"),
    ("export", "{file}"),
    ("import", "{file}"),
    ("-V", "admin-v", "export", "{file}"),
    ("-V", "admin-v", "import", "{file}"),
    ("-V", "admin-v", "delete", "parameter", "component=operator_policy", "name=admin-r"),
    ("delete", "vhost_limit", "vhost=admin-v", "name=max-queues"),
    ("-V", "admin-v", "delete", "operator_policy", "name=admin-o"),
    ("-V", "admin-v", "delete", "policy", "name=admin-p"),
    ("delete", "permission", "vhost=admin-v", "user=admin-u"),
    ("delete", "user", "name=admin-u"),
    ("delete", "vhost", "name=admin-v"),
    ("delete", "vhost", "name=admin-v"),
]
"""Names of users and virtual hosts belong to the whole server: of lists only lines with `admin-` count."""


@pytest.fixture(scope="module")
def script(rabbitmq_management: Management, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of the RabbitMQ that the tests run."""
    path = tmp_path_factory.mktemp("admin") / "rabbitmqadmin"
    url = f"http://127.0.0.1:{rabbitmq_management.http_port}/cli/rabbitmqadmin"
    with urlopen(url, timeout=WAIT_S) as response:
        path.write_bytes(response.read())
    return path


def run(script: Path, broker: Management, command: tuple[str, ...]) -> tuple[int, str]:
    """The exit code, and what the command printed, with the same name for the virtual host."""
    place = ("-H", "127.0.0.1", "-P", str(broker.http_port), "-V", broker.vhost)
    ran = subprocess.run(
        [sys.executable, str(script), *place, *command], capture_output=True, text=True, timeout=WAIT_S
    )
    printed = (ran.stdout + ran.stderr).replace(f"vhost '{broker.vhost}'", "vhost '/'")
    # RabbitMQ escapes some of its sentences for HTML.
    printed = html.unescape(printed).replace(f"/{quote(broker.vhost, safe='')}/", "/{vhost}/")
    if "raw_json" in command:
        printed = json.dumps(json.loads(printed), sort_keys=True)
    return ran.returncode, printed


def test_rabbitmqadmin_prints_the_same_for_both_brokers(
    script: Path, leveret_management: Management, rabbitmq_management: Management
) -> None:
    found, wanted = {}, {}
    for number, command in enumerate(COMMANDS):
        key = f"{number} {' '.join(command)}"
        found[key] = run(script, leveret_management, command)
        wanted[key] = run(script, rabbitmq_management, command)
    differing = [(key, found[key], wanted[key]) for key in found if found[key] != wanted[key]]
    assert not differing, "\n".join(map(str, differing))


def test_settings_are_declared_listed_and_deleted_alike(
    script: Path, leveret_management: Management, rabbitmq_management: Management, tmp_path: Path
) -> None:
    found, wanted = {}, {}
    for number, command in enumerate(SETTINGS):
        for broker, told in ((leveret_management, found), (rabbitmq_management, wanted)):
            file = str(tmp_path / f"{broker.http_port}.json")
            code, printed = run(script, broker, tuple(word.replace("{file}", file) for word in command))
            if "list" in command:
                printed = "".join(sorted(line for line in printed.splitlines(True) if "admin-" in line))
            told[f"{number} {' '.join(command)}"] = code, printed.replace(file, "{file}")
    differing = [(key, found[key], wanted[key]) for key in found if found[key] != wanted[key]]
    assert not differing, "\n".join(map(str, differing))
