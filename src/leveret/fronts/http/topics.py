"""`/api/topics`: topics, which are exchanges that spread messages over partitions (streams).

    GET    /api/topics[/{vhost}]        all topics that the user may see, an object each
    GET    /api/topics/{vhost}/{name}   one topic, with its partitions and the groups that read it
    PUT    /api/topics/{vhost}/{name}   makes a topic, or adds partitions to it:
                                        {"partitions": 8, "max_age": "7D", "max_bytes": 1000000000}
    DELETE /api/topics/{vhost}/{name}   deletes the topic with its messages; no group may read it

Rules and permissions are left to `broker.operations.topics`.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leveret.broker.access.accounts import User
from leveret.broker.broker import Broker
from leveret.broker.operations import topics as operations
from leveret.broker.views.topics import PartitionView, TopicView, each_topic, one_topic
from leveret.fronts.http.auth import enter, visible
from leveret.fronts.http.endpoints import Endpoints
from leveret.fronts.http.errors import Problem
from leveret.fronts.http.json_replies import jsonable, reply, reply_list, text
from leveret.fronts.http.path_segments import segment
from leveret.fronts.http.request_bodies import Body, check_fields, number_in, text_in


class Topics:
    def __init__(self, broker: Broker, *, changed: Callable[[], None]) -> None:
        self._broker = broker
        self._changed = changed

    def routes(self, make: Endpoints) -> list[Route]:
        return [
            Route("/api/topics", make.reading(self.show_all)),
            Route("/api/topics/{vhost}", make.reading(self.show_vhost)),
            make.by_method(
                "/api/topics/{vhost}/{name}",
                GET=make.reading(self.show),
                PUT=make.changing(self.put),
                DELETE=make.changing(self.delete),
            ),
        ]

    def show_all(self, request: Request, user: User) -> Response:
        return reply_list(map(_summary, each_topic(self._broker, visible(self._broker, user))))

    def show_vhost(self, request: Request, user: User) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        return reply_list(map(_summary, each_topic(self._broker, [vhost])))

    def show(self, request: Request, user: User) -> Response:
        return self._reply(enter(self._broker, user, segment(request, "vhost")), segment(request, "name"))

    def _reply(self, vhost: str, name: str, status: int = 200) -> Response:
        topic = one_topic(self._broker, vhost, name)
        if topic is None:
            raise Problem(404, "Object Not Found", f"no topic '{name}' in vhost '{vhost}'")
        return reply(_whole(topic), status)

    def put(self, request: Request, user: User, body: Body) -> Response:
        """Make a topic (201), or change an existing one (200): missing fields keep their values."""
        vhost = enter(self._broker, user, segment(request, "vhost"))
        check_fields(body, ("partitions", "max_age", "max_bytes"))
        name, is_new = operations.put(
            self._broker,
            user,
            vhost,
            segment(request, "name"),
            count=number_in(body, "partitions"),
            max_age=text_in(body, "max_age"),
            max_bytes=number_in(body, "max_bytes"),
            begin=self._changed,
        )
        return self._reply(vhost, name, 201 if is_new else 200)

    def delete(self, request: Request, user: User, body: Body) -> Response:
        vhost = enter(self._broker, user, segment(request, "vhost"))
        operations.delete(self._broker, user, vhost, segment(request, "name"), begin=self._changed)
        return Response(status_code=204)


def _summary(topic: TopicView) -> dict[str, object]:
    return {
        "vhost": text(topic.vhost),
        "name": text(topic.name),
        "partitions": len(topic.partitions),
        "messages": topic.messages,
        "bytes": topic.bytes,
        "groups": [text(group.name) for group in topic.groups],
        "max_age": jsonable(topic.max_age),
        "max_bytes": topic.max_bytes,
    }


def _whole(topic: TopicView) -> dict[str, object]:
    return {
        **_summary(topic),
        "partitions": [_partition(partition) for partition in topic.partitions],
        "groups": [
            {"name": text(group.name), "mode": group.mode, "lag": group.lag} for group in topic.groups
        ],
    }


def _partition(partition: PartitionView) -> dict[str, object]:
    return {**partition._asdict(), "stream": text(partition.stream)}
