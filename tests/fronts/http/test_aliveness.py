"""The aliveness test: a message goes through the queue `aliveness-test`, or the reason why not."""


def test_a_message_goes_through_the_queue(api, channel):
    for _ in range(2):
        found = api.get("/api/aliveness-test/%2F")
        assert (found.status, found.json) == (200, {"status": "ok"})
    assert channel.queue_declare("aliveness-test", passive=True).method.message_count == 0


def test_the_user_needs_permissions_on_the_queue(api):
    ann = api.add_user("ann", "management", "/")
    refused = api.get("/api/aliveness-test/%2F", ann)
    reason = "ACCESS_REFUSED - access to queue 'aliveness-test' in vhost '/' refused for user 'ann'"
    assert (refused.status, refused.json) == (401, {"error": "not_authorised", "reason": reason})
    assert api.get("/api/aliveness-test/nope").status == 404


def test_another_queue_of_this_name_is_in_the_way(api, channel):
    channel.queue_declare("aliveness-test", durable=True)
    refused = api.get("/api/aliveness-test/%2F")
    assert refused.status == 400
    assert refused.json["reason"].startswith("406 PRECONDITION_FAILED - inequivalent arg 'durable'")


def test_while_publishers_are_blocked_the_test_fails(api):
    api.broker.call(lambda: api.broker.server.broker.set_alarm("disk", on=True))
    failed = api.get("/api/aliveness-test/%2F")
    assert failed.status == 503
    assert failed.json == {"status": "failed", "reason": "Publishers are blocked: low on disk."}


def test_a_policy_that_refuses_the_message_makes_the_test_fail(api):
    policy = {"pattern": "^alive", "definition": {"max-length": 0, "overflow": "reject-publish"}}
    assert api.ask("PUT", "/api/policies/%2F/full", body=policy).status == 201
    failed = api.get("/api/aliveness-test/%2F")
    assert (failed.status, failed.json["reason"]) == (503, "The test message was refused.")
