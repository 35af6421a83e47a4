"""Where Leveret differs from RabbitMQ on purpose, each with its reason.

`REWRITES` make lines comparable that can't be equal (names of products, additions that are ours). `INSTEAD`
are single places: in that scenario RabbitMQ says these lines and Leveret says those, and both are checked, so
that one of them that no longer occurs fails its test.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Applied to every line of both servers."""

    pattern: str
    replacement: str
    reason: str


@dataclass(frozen=True, slots=True)
class Instead:
    """In one scenario: where RabbitMQ says the lines `rabbitmq`, Leveret says the lines `leveret`."""

    scenario: str
    rabbitmq: tuple[str, ...]
    leveret: tuple[str, ...]
    reason: str


REWRITES: Sequence[Rewrite] = (
    Rewrite(
        r"server_properties=\{'capabilities': (\{.*?\}).*?'version': '([^']*)'.*?\}",
        r"server_properties={'capabilities': \1, 'version': '\2'}",
        "Product, platform, copyright, information and cluster name differ between the servers.",
    ),
    Rewrite(
        r"(?:, )?'(?:begun_marks|consumer_groups|delayed_requeue|publisher_dedup|queue_peek)': True",
        "",
        "Leveret announces further capabilities.",
    ),
    Rewrite(
        r"headers=\{'x-delivery-count': \w:\d+\} ?",
        "",
        "Leveret counts deliveries on every queue, and shows the count from the second delivery on.",
    ),
    Rewrite(r", 'x-delivery-count': \w:\d+", "", "As above, behind headers of the publisher."),
    Rewrite(r"'x-delivery-count': \w:\d+, ", "", "As above, before headers of the publisher."),
    Rewrite(
        r"(?:, )?'x-last-death-(?:exchange|queue|reason)': '[^']*'",
        "",
        "Leveret adds x-last-death-*, as RabbitMQ does from 3.13 on.",
    ),
    Rewrite(
        r"('x-death': \[.*?\{'count': )I:(\d)",
        r"\1l:\2",
        "Counts in an x-death header that a publisher has set itself are kept, in 64 bits.",
    ),
    Rewrite(r"\\n +", "", "Erlang breaks long terms into lines."),
    Rewrite(r"http < 404 .*", "http < 404 Not Found", "Leveret often says what was not found."),
    Rewrite(
        r"(vhost '[^']*') is down",
        r"\1 is deleted",
        "RabbitMQ has two reasons to close connections to a deleted virtual host; either may come first.",
    ),
)

SOCKET_CLOSED = "a.0 < (the server closed the socket)"
CRASH = "RabbitMQ's reader crashes and drops the socket. Leveret tells the peer what was wrong."
CHECK_CRASH = "RabbitMQ's check crashes and ends the connection. Leveret tells the client what was wrong."
NO_OFFSET = '{invalid_stream_offset_arg,{longstr,<<"abc">>}}'
NO_RECOVERY = "NOT_IMPLEMENTED - basic.recover not supported by stream queues queue 's' in vhost '/'"
OVERRUN = (
    "RabbitMQ's count of missing bytes becomes negative, and the channel is silent from then on. "
    "The specification asks for an error."
)
TOO_LONG = (
    "a.0 < connection.close reply_code=505 reply_text='UNEXPECTED_FRAME - the content body is longer "
    "than its header says' class_id=60 method_id=40"
)

AT_THE_METHOD = "RabbitMQ refuses a publish when its body is complete, and keeps the body until then."


def _told(code: int, sentence: str, class_id: int, method_id: int) -> str:
    return f"a.0 < connection.close reply_code={code} reply_text='{sentence}' {_ids(class_id, method_id)}"


def _ids(class_id: int, method_id: int) -> str:
    return f"class_id={class_id} method_id={method_id}"


def _invalid(channel: str, argument: str, *, wrong: str, ids: str) -> str:
    """How Leveret refuses an argument of the stream `s`."""
    sentence = f"PRECONDITION_FAILED - invalid arg '{argument}' for queue 's' in vhost '/': {wrong}"
    return f"{channel} < channel.close reply_code=406 reply_text={sentence!r} {ids}"


def _nested(headers: str) -> str:
    """The last delivery of `headers_of_a_message_in_a_stream`."""
    delivery = "consumer_tag='c' delivery_tag=2 redelivered=False exchange='' routing_key='s'"
    shown = f"{{headers={{{headers}'text': 'b', 'x-stream-offset': l:1}}}}"
    return f"a.2 < basic.deliver {delivery} {shown} b'nested'"


def _second(*, redelivered: bool, body: str) -> str:
    """The second delivery of `commit_publishes_before_it_settles`."""
    delivery = f"delivery_tag=2 redelivered={redelivered} exchange='' routing_key='q'"
    return f"a.1 < basic.deliver consumer_tag='c' {delivery} {{}} b'{body}'"


def _deaths(*queues: str) -> str:
    """The last line of `the_route_through_several_queues_is_told`, with x-death in this order."""
    entries = {
        "one": "{'count': l:1, 'exchange': 'x', 'original-expiration': '60000', 'queue': 'one', "
        "'reason': 'rejected', 'routing-keys': ['one', 'copy'], 'time': <time>}",
        "two": "{'count': l:1, 'exchange': 'x', 'queue': 'two', 'reason': 'rejected', "
        "'routing-keys': ['two'], 'time': <time>}",
        "three": "{'count': l:1, 'exchange': 'x', 'queue': 'three', 'reason': 'rejected', "
        "'routing-keys': ['three'], 'time': <time>}",
    }
    deaths = ", ".join(entries[queue] for queue in queues)
    first = "'x-first-death-exchange': 'x', 'x-first-death-queue': 'one', 'x-first-death-reason': 'rejected'"
    delivery = "delivery_tag=4 redelivered=False exchange='x' routing_key='end' message_count=0"
    return f"a.1 < basic.get-ok {delivery} {{headers={{'x-death': [{deaths}], {first}}}}} b'a'"


# What random walks leave out, and why (written scenarios cover the rest of each):
# - Two queues that deliver to one channel: nobody promises an order between them. So each channel consumes
#   from one.
# - Several consumers' or basic.get's messages given back at once (recover, nack multiple): RabbitMQ requeues
#   consumer by consumer and redelivers in between; Leveret requeues all, then delivers. Given back to a queue
#   with x-max-length: RabbitMQ drops from the head before it redelivers, Leveret redelivers first.
# - tx with x-overflow: an atomic commit refuses all, RabbitMQ keeps what was taken. tx with x-max-priority:
#   Leveret offers what was committed together highest first, RabbitMQ as it was published.
# - Shared prefetch with no_ack consumers: who is served first when there is room again is random in RabbitMQ.
#   Shared prefetch set while basic.get's messages are out: RabbitMQ counts them in and never out again.

INSTEAD: Sequence[Instead] = (
    Instead(
        "ttl_dlx.dead_letters_to_a_queue_that_rejects",
        (
            "a.1 > basic.get queue='full' no_ack=True",
            "a.1 < basic.get-ok delivery_tag=2 redelivered=False exchange='' routing_key='full' "
            "message_count=0 {} b'in the way'",
            "  = full: 0 ready, 0 consumers",
        ),
        (
            "  = full: 2 ready, 0 consumers",
            "a.1 > basic.get queue='full' no_ack=True",
            "a.1 < basic.get-ok delivery_tag=2 redelivered=False exchange='' routing_key='full' "
            "message_count=1 {} b'in the way'",
            "  = full: 1 ready, 0 consumers",
        ),
        "A queue that refuses publishes still accepts dead letters. If they were dropped, no queue would "
        "have them.",
    ),
    Instead(
        "tx.commit_publishes_before_it_settles",
        (_second(redelivered=False, body="new"),),
        (_second(redelivered=True, body="old"),),
        "A commit is one change: returned messages are back in their places, before the messages that it "
        "publishes.",
    ),
    Instead(
        "bad_frames.a_body_longer_than_announced",
        ("a.1 > body b'three'",),
        ("a.1 > body b'three'", TOO_LONG, SOCKET_CLOSED),
        OVERRUN,
    ),
    Instead(
        "bad_frames.a_second_body_frame_beyond_the_announced_size",
        ("a.1 > body b'cd'",),
        ("a.1 > body b'cd'", TOO_LONG, SOCKET_CLOSED),
        OVERRUN,
    ),
    Instead(
        "bad_frames.a_header_whose_properties_are_cut_off",
        (_told(541, "INTERNAL_ERROR", 0, 0),),
        (_told(502, "SYNTAX_ERROR - content header: its properties do not fill it exactly", 60, 40),),
        CRASH,
    ),
    Instead(
        "bad_frames.a_table_with_a_value_cut_off",
        (SOCKET_CLOSED,),
        (_told(502, "SYNTAX_ERROR - field table: an entry is longer than its table", 50, 10), SOCKET_CLOSED),
        CRASH,
    ),
    Instead(
        "bad_frames.a_table_with_an_unknown_field_type",
        (SOCKET_CLOSED,),
        (_told(502, "SYNTAX_ERROR - field table: unknown type 63", 50, 10), SOCKET_CLOSED),
        CRASH,
    ),
    Instead(
        "bad_frames.an_unknown_class",
        (SOCKET_CLOSED,),
        (_told(540, "NOT_IMPLEMENTED - unknown method 10 of class 777", 777, 10), SOCKET_CLOSED),
        CRASH,
    ),
    Instead(
        "bad_frames.an_unknown_method_of_a_known_class",
        (SOCKET_CLOSED,),
        (_told(540, "NOT_IMPLEMENTED - unknown method 777 of class 60", 60, 777), SOCKET_CLOSED),
        CRASH,
    ),
    Instead(
        "bad_frames.an_unknown_method_on_channel_0",
        (SOCKET_CLOSED,),
        (_told(540, "NOT_IMPLEMENTED - unknown method 777 of class 10", 10, 777), SOCKET_CLOSED),
        CRASH,
    ),
    Instead(
        "connection.protocol_headers_of_older_versions",
        (
            "a.0 < connection.start version_major=0 version_minor=9",
            "b.0 < connection.start version_major=8 version_minor=0",
        ),
        (
            r"a.0 < protocol header b'AMQP\x00\x00\t\x01'",
            SOCKET_CLOSED,
            r"b.0 < protocol header b'AMQP\x00\x00\t\x01'",
            SOCKET_CLOSED.replace("a.0", "b.0"),
        ),
        "Leveret speaks 0-9-1 only; RabbitMQ also shakes hands in 0-8 and 0-9.",
    ),
    Instead(
        "ttl_dlx.the_route_through_several_queues_is_told",
        (_deaths("three", "one", "two"),),
        (_deaths("three", "two", "one"),),
        "RabbitMQ reverses the older entries of x-death at every death; Leveret keeps the newest first.",
    ),
    Instead(
        "tx.a_commit_to_a_full_queue",
        ("  = q: 1 ready, 0 consumers",),
        (),
        "A commit is atomic: when one message is refused, none is published.",
    ),
    Instead(
        "errors.a_name_that_is_not_utf_8",
        (_told(501, "FRAME_ERROR - Malformed UTF-8 in shortstr", 0, 0), SOCKET_CLOSED),
        (
            r"a.1 < queue.declare-ok queue='\udcff\udcfe not utf-8' message_count=0 consumer_count=0",
            "  = \udcff\udcfe not utf-8: 0 ready, 0 consumers",
        ),
        "Leveret accepts names of any bytes.",
    ),
    Instead(
        "queue.a_delivery_limit_on_a_classic_queue",
        (
            'a.1 < channel.close reply_code=406 reply_text="PRECONDITION_FAILED - invalid arg '
            "'x-delivery-limit' for queue 'q' in vhost '/' of queue type rabbit_classic_queue\" "
            "class_id=50 method_id=10",
        ),
        (
            "a.1 < queue.declare-ok queue='q' message_count=0 consumer_count=0",
            "  = q: 0 ready, 0 consumers",
        ),
        "Leveret counts deliveries on every queue, not on quorum queues alone.",
    ),
    Instead(
        "streams.an_age_that_does_not_begin_with_a_digit",
        (_told(541, "INTERNAL_ERROR", 0, 0), SOCKET_CLOSED),
        (_invalid("a.1", "x-max-age", wrong="invalid_max_age", ids=_ids(50, 10)),),
        CHECK_CRASH,
    ),
    Instead(
        "streams.an_offset_that_does_not_begin_with_a_digit",
        (_told(541, "INTERNAL_ERROR", 0, 0), SOCKET_CLOSED),
        (_invalid("a.2", "x-stream-offset", wrong=NO_OFFSET, ids=_ids(60, 20)),),
        CHECK_CRASH,
    ),
    Instead(
        "streams.asking_for_everything_again_that_was_read",
        (_told(541, "INTERNAL_ERROR", 0, 0), SOCKET_CLOSED),
        (f"a.0 < connection.close reply_code=540 reply_text={NO_RECOVERY!r} {_ids(60, 110)}", SOCKET_CLOSED),
        "RabbitMQ's channel crashes and ends the connection. Leveret tells the client what is not possible.",
    ),
    Instead(
        "streams.headers_of_a_message_in_a_stream",
        (_nested(""),),
        (_nested("'list': ['a', 'b'], 'table': {'k': 'v'}, "),),
        "RabbitMQ keeps streams in the format of AMQP 1.0, and loses headers that are arrays or tables.",
    ),
    Instead(
        "streams.the_consumers_of_a_stream_are_counted",
        (
            "a.1 > queue.declare queue='s' passive=True",
            "a.1 < queue.declare-ok queue='s' message_count=0 consumer_count=0",
        ),
        (
            "a.1 > queue.declare queue='s' passive=True",
            "a.1 < queue.declare-ok queue='s' message_count=0 consumer_count=1",
        ),
        "RabbitMQ 3.10 always reports 0 consumers of a stream.",
    ),
    Instead(
        "unfinished.the_method_of_a_publish_to_a_missing_exchange",
        ("a.1 > basic.publish exchange='missing' routing_key='k'",),
        (
            "a.1 > basic.publish exchange='missing' routing_key='k'",
            "a.1 < channel.close reply_code=404 reply_text=\"NOT_FOUND - no exchange 'missing' "
            f"in vhost '/'\" {_ids(60, 40)}",
        ),
        AT_THE_METHOD,
    ),
    Instead(
        "unfinished.the_method_of_a_publish_to_an_internal_exchange",
        ("a.1 > basic.publish exchange='x' routing_key='k'",),
        (
            "a.1 > basic.publish exchange='x' routing_key='k'",
            'a.1 < channel.close reply_code=403 reply_text="ACCESS_REFUSED - cannot publish to internal '
            f"exchange 'x' in vhost '/'\" {_ids(60, 40)}",
        ),
        AT_THE_METHOD,
    ),
    Instead(
        "unfinished.the_method_of_a_return_from_a_client",
        ("a.1 > basic.return reply_code=1 reply_text='' exchange='' routing_key=''",),
        (
            "a.1 > basic.return reply_code=1 reply_text='' exchange='' routing_key=''",
            _told(503, "COMMAND_INVALID - unimplemented method", 60, 50),
            SOCKET_CLOSED,
        ),
        AT_THE_METHOD,
    ),
)


def comparable(transcript: list[str]) -> list[str]:
    """A transcript without what can't be equal."""
    lines = []
    for line in transcript:
        for rewrite in REWRITES:
            line = re.sub(rewrite.pattern, rewrite.replacement, line)
        lines.append(line.replace("{ ", "{").replace(" }", "}"))
    return lines


def expected(scenario: str, rabbitmq: list[str]) -> list[str]:
    """What Leveret must say, given what RabbitMQ said."""
    lines = comparable(rabbitmq)
    for deviation in INSTEAD:
        if deviation.scenario == scenario:
            lines = replaced(lines, list(deviation.rabbitmq), list(deviation.leveret))
    return lines


def replaced(lines: list[str], before: list[str], after: list[str]) -> list[str]:
    """`lines` with the only run of `before` in it replaced; a ValueError when there is none."""
    for start in range(len(lines) - len(before) + 1):
        if lines[start : start + len(before)] == before:
            return lines[:start] + after + lines[start + len(before) :]
    raise ValueError(f"RabbitMQ does not say {before} any more:\n" + "\n".join(lines))
