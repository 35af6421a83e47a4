"""Options: read from Spark's strings, refused with one sentence, never shown with a password."""

import pickle
from datetime import UTC, datetime

import pytest

from leveret.spark.endpoint import Endpoint
from leveret.spark.errors import BadOption
from leveret.spark.options import SinkOptions, SourceOptions


def source(**options: str) -> SourceOptions:
    return SourceOptions.parse({"queue": "orders", **options})


def test_options_have_the_values_that_were_given_whatever_their_case():
    options = source(
        CURSOR="lake",
        maxmessagespertrigger="10",
        maxBytesPerTrigger="64m",
        leaseTimeout="30 minutes",
        dedupWindow="90s",
        includeProperties="True",
        minPartitions="3",
        decode="TEXT",
    )
    assert (options.cursor, options.max_messages, options.max_bytes) == ("lake", 10, 64 << 20)
    assert (options.lease_timeout_s, options.dedup_window_s) == (1800.0, 90.0)
    assert (options.include_properties, options.min_partitions, options.decode) == (True, 3, "text")


def test_what_is_not_given_has_a_default():
    options = source()
    assert options.lease_timeout_s == options.dedup_window_s == 86_400
    assert (options.fail_on_data_loss, options.ack_mode, options.starting) == (True, "commit", "earliest")
    assert options.amqp_urls == ("amqp://guest:guest@localhost:5672/",)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("2 days", 172_800), ("250ms", 0.25), ("3 Minutes", 180)],
)
def test_durations_are_written_in_many_ways(text, seconds):
    assert source(leaseTimeout=text).lease_timeout_s == seconds


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("Latest", "latest"),
        ("first", "earliest"),
        ("last", "latest"),
        ("17", 17),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_stream_starts_at_any_position(text, position):
    assert SourceOptions.parse({"stream": "s", "startingPosition": text}).starting == position


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queu": "x"}, "the source has no option 'queu' (did you mean queue?)"),
        ({"maxMessagePerTriger": "1"}, "did you mean maxMessagesPerTrigger?"),
        ({"kafka.bootstrap.servers": "x"}, "there are ackMode, brokerTimeout"),
        ({"stream": "s"}, "options queue and stream are both given"),
        ({"stream": "s", "topic": "t"}, "options queue, stream and topic are all given"),
        ({"queue": ""}, "option queue '' is empty"),
        ({"startingPosition": "latest"}, "option startingPosition of a queue can only be 'earliest'"),
        ({"startingPosition": "soon"}, "is not earliest, latest, an offset or an ISO timestamp"),
        ({"maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger '0' is not a number above zero"),
        ({"maxBytesPerTrigger": "many"}, "is not a size"),
        ({"leaseTimeout": "soon"}, "is not a duration"),
        ({"leaseTimeout": "0"}, "is not a duration"),
        ({"includeProperties": "yes"}, "is neither true nor false"),
        ({"decode": "xml"}, "is not one of binary, text, json"),
        ({"decode": "json"}, "option decode=json needs option jsonSchema"),
        ({"jsonSchema": "a INT"}, "option jsonSchema is given without decode=json"),
        ({"url": "http://secret@host/"}, "option url is not an AMQP URL"),
        ({"url": "amqp://a/x,amqp://b/y"}, "name different vhosts: x, y"),
        ({"flightUrl": "http://somewhere"}, "option flightUrl is not like grpc+tcp://host:port"),
        (
            {"tlsCaFile": "/nowhere.pem"},
            "cacertfile /nowhere.pem can't be used: No such file",
        ),
        ({"startingTimestamp": "noon"}, "is not an ISO timestamp"),
        (
            {"endingTimestamp": "9999-12-31T23:59:59-05:00"},
            "option endingTimestamp '9999-12-31T23:59:59-05:00' is not in the years 1 to 9999 of UTC",
        ),
        (
            {"startingTimestamp": "0001-01-01T00:00:00+05:00"},
            "option startingTimestamp '0001-01-01T00:00:00+05:00' is not in the years 1 to 9999 of UTC",
        ),
        ({"asyncProgressTrackingEnabled": "true"}, "asynchronous progress tracking can't be used"),
        ({"asyncProgressTracking": "false"}, "the source has no option 'asyncProgressTracking'"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, sentence):
    with pytest.raises(BadOption) as raised:
        source(**options)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_position_has_times_of_the_years_of_utc():
    with pytest.raises(BadOption, match="9999-12-31T23:59:59-05:00' is not in the years 1 to 9999 of UTC"):
        SourceOptions.parse({"stream": "s", "startingPosition": "9999-12-31T23:59:59-05:00"})


@pytest.mark.parametrize("text", ['{"a": -1}', '{"a": 1.5}', '{"a": true}', '{"a": "1"}', "{}", "{a}"])
def test_offsets_by_stream_are_numbers(text):
    with pytest.raises(BadOption, match="is not an offset for each stream"):
        SourceOptions.parse({"topic": "t", "startingPosition": text})


def test_a_topic_starts_at_offsets_by_stream_and_nothing_else_does():
    given = {"startingPosition": '{"t-0": 5, "t-1": 0}'}
    assert SourceOptions.parse({"topic": "t", **given}).starting == {"t-0": 5, "t-1": 0}
    with pytest.raises(BadOption, match="has offsets by partition, which only a topic has"):
        SourceOptions.parse({"stream": "s", **given})


def test_neither_queue_stream_nor_topic_is_a_sentence_too():
    with pytest.raises(BadOption, match="options queue, stream and topic are all missing"):
        SourceOptions.parse({})


def test_a_stream_of_batches_needs_a_cursor_and_no_ranges():
    with pytest.raises(BadOption, match="option cursor is missing"):
        source().check_stream()
    with pytest.raises(BadOption, match="option endingOffset is for batch reads"):
        source(cursor="c", endingOffset="5").check_stream()
    with pytest.raises(BadOption, match="option cursor is for streaming reads"):
        source(cursor="c").check_batch()


def test_a_topic_needs_a_cursor_unless_nothing_is_acked():
    with pytest.raises(BadOption, match="option cursor is missing"):
        SourceOptions.parse({"topic": "t"}).check_stream()
    SourceOptions.parse({"topic": "t", "ackMode": "none"}).check_stream()
    SourceOptions.parse({"stream": "s"}).check_stream()


def test_user_and_password_win_over_the_url():
    options = source(url="amqp://a:b@one:1/v,amqps://two/v?heartbeat=5", user="m@x", password="p/w,:")
    assert options.amqp_urls == (
        "amqp://m%40x:p%2Fw%2C%3A@one:1/v",
        "amqps://m%40x:p%2Fw%2C%3A@two/v?heartbeat=5",
    )
    assert options.vhost == "v"


def test_a_password_alone_goes_with_the_user_of_the_url():
    assert source(url="amqp://a:b@one/", password="").amqp_urls == ("amqp://a:@one/",)


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_nothing_shows_a_password(kind):
    given = {"url": "amqp://me:s3cret@one:1/v?connection_timeout=3", "password": "0ther", "user": "me"}
    options = source(**given) if kind == "source" else SinkOptions.parse(given)
    for shown in (repr(options), str(options), f"{options}", repr([options])):
        assert "s3cret" not in shown
        assert "0ther" not in shown
        assert "amqp://one:1/v" in shown


@pytest.mark.parametrize("location", ["s3://AKIA:s3cret@bucket/x", "s3://AKIA:s3/cret@bucket/x"])
def test_nothing_shows_the_keys_of_the_spool(location):
    options = source(spoolLocation=location)
    for shown in (repr(options), repr(Endpoint(options, "RabbitMQ", None))):
        assert "spool_location='s3://bucket/x'" in shown
        assert "AKIA" not in shown
        assert "cret" not in shown
    assert options.spool_location == location


@pytest.mark.parametrize(
    "url", ["amqp://me:s3/cret@host/", "amqp://me:12/34@host:x/", "s3cret", "://s3cret@"]
)
def test_a_url_that_is_wrong_does_not_give_its_password_away(url):
    with pytest.raises(BadOption) as raised:
        source(url=url)
    assert "cret" not in str(raised.value)
    assert "34" not in str(raised.value)


def test_options_travel_to_other_processes():
    options = source(cursor="lake", password="x")
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_sink_has_options_of_its_own_and_lets_sparks_pass():
    options = SinkOptions.parse({"exchange": "x", "checkpointLocation": "/c", "mandatory": "false"})
    assert (options.exchange, options.mandatory, options.routing_key) == ("x", False, None)
    with pytest.raises(BadOption, match=r"the sink has no option 'exchang' \(did you mean exchange\?\)"):
        SinkOptions.parse({"exchang": "x"})
    with pytest.raises(BadOption, match="asynchronous progress tracking"):
        SinkOptions.parse({"asyncProgressTrackingEnabled": "true"})
