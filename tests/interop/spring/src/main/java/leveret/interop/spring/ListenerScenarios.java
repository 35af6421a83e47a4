package leveret.interop.spring;

import static leveret.interop.spring.Steps.equal;
import static leveret.interop.spring.Steps.next;
import static leveret.interop.spring.Steps.says;
import static leveret.interop.spring.Steps.step;

import com.rabbitmq.client.Channel;
import java.util.List;
import java.util.Map;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageProperties;

/** The listener's side: what each acknowledge mode and each way to give up does with a message that fails. */
final class ListenerScenarios {
    private ListenerScenarios() {}

    private interface Scenario {
        void play(Running app) throws Exception;
    }

    static void tour(String url) {
        play("mode none: a message is gone although its listener failed", url, ListenerScenarios::none, "none");
        play("mode auto: a failed message comes back until its listener succeeds", url, ListenerScenarios::auto,
                "auto");
        play("mode auto: a message that is not to be requeued becomes a dead letter", url,
                ListenerScenarios::dontRequeue, "auto");
        play("mode auto: the direct container acks as the simple one does", url, ListenerScenarios::auto, "direct");
        play("mode manual: ack, nack on the first failure, reject on the second", url, ListenerScenarios::manual,
                "manual");
        play("retry: three attempts of one delivery, then RejectAndDontRequeueRecoverer drops it to the dead letters",
                url, ListenerScenarios::reject, "retry");
        play("retry: three attempts, then RepublishMessageRecoverer sends it to the error exchange", url,
                ListenerScenarios::republish, "retry", "republish", "correlated");
        play("retry: three attempts, then ImmediateRequeueMessageRecoverer gives it back to the queue", url,
                ListenerScenarios::requeue, "retry", "requeue");
        play("retry: stateful attempts are deliveries of their own", url, ListenerScenarios::stateful, "retry",
                "stateful");
    }

    private static void play(String sentence, String url, Scenario scenario, String... profiles) {
        step(sentence, () -> {
            try (Running app = Running.with(url, profiles)) {
                scenario.play(app);
            }
        });
    }

    private static String fail(Worker.Delivered delivered, Channel channel) {
        throw new IllegalStateException("on purpose: " + delivered.body());
    }

    private static void none(Running app) throws Exception {
        app.worker().job = ListenerScenarios::fail;
        app.send("lost");
        app.expectDelivery("lost", false);
        equal(app.leftAfterStop(), 0, "messages left");
        equal(app.worker().deliveries.size(), 0, "deliveries after the first");
        equal(app.messages("deadLetters"), 0, "dead letters");
    }

    private static void auto(Running app) throws Exception {
        app.worker().job = (delivered, channel) -> delivered.redelivered() ? null : fail(delivered, channel);
        app.send("hard");
        app.expectDelivery("hard", false);
        app.expectDelivery("hard", true);
        equal(app.leftAfterStop(), 0, "messages left");
        equal(app.worker().deliveries.size(), 0, "deliveries after the second");
    }

    private static void dontRequeue(Running app) throws Exception {
        app.worker().job = (delivered, channel) -> {
            throw new AmqpRejectAndDontRequeueException("on purpose");
        };
        app.send("hopeless");
        app.expectDelivery("hopeless", false);
        expectDeath(app, "hopeless");
        equal(app.leftAfterStop(), 0, "messages left");
    }

    private static void manual(Running app) throws Exception {
        app.worker().job = (delivered, channel) -> {
            if (delivered.body().equals("good")) {
                channel.basicAck(delivered.tag(), false);
            } else if (delivered.redelivered()) {
                channel.basicReject(delivered.tag(), false);
            } else {
                channel.basicNack(delivered.tag(), false, true);
            }
            return null;
        };
        app.send("good");
        app.send("bad");
        app.expectDelivery("good", false);
        app.expectDelivery("bad", false);
        app.expectDelivery("bad", true);
        expectDeath(app, "bad");
        equal(app.leftAfterStop(), 0, "messages left");
    }

    private static void expectAttempts(Running app, String body, boolean redelivered) throws Exception {
        for (int attempt = 0; attempt < 3; attempt++) {
            app.expectDelivery(body, redelivered);
        }
    }

    private static void reject(Running app) throws Exception {
        app.worker().job = ListenerScenarios::fail;
        app.send("hopeless");
        expectAttempts(app, "hopeless", false);
        expectDeath(app, "hopeless");
        equal(app.leftAfterStop(), 0, "messages left");
        equal(app.worker().deliveries.size(), 0, "attempts after the third");
    }

    private static void republish(Running app) throws Exception {
        app.worker().job = ListenerScenarios::fail;
        app.send("broken");
        expectAttempts(app, "broken", false);
        MessageProperties properties = app.awaitMessage("errorQueue").getMessageProperties();
        says(properties.getHeader("x-exception-message"), "on purpose: broken");
        says(String.valueOf(properties.<Object>getHeader("x-exception-stacktrace")), "IllegalStateException");
        equal(properties.getHeader("x-original-exchange"), app.exchange(), "the original exchange");
        equal(properties.getHeader("x-original-routingKey"), Application.KEY, "the original routing key");
        equal(properties.getReceivedRoutingKey(), Application.ERROR_KEY, "the routing key");
        equal(app.leftAfterStop(), 0, "messages left");
        equal(app.messages("deadLetters"), 0, "dead letters");
    }

    private static void requeue(Running app) throws Exception {
        app.worker().job = (delivered, channel) -> delivered.redelivered() ? null : fail(delivered, channel);
        app.send("stubborn");
        expectAttempts(app, "stubborn", false);
        app.expectDelivery("stubborn", true);
        equal(app.leftAfterStop(), 0, "messages left");
    }

    private static void stateful(Running app) throws Exception {
        app.worker().job = ListenerScenarios::fail;
        app.template().convertAndSend(app.exchange(), Application.KEY, "hopeless", message -> {
            message.getMessageProperties().setMessageId("stateful-1");
            return message;
        });
        long first = next(app.worker().deliveries, "the first attempt").tag();
        for (int attempt = 1; attempt < 3; attempt++) {
            Worker.Delivered delivered = next(app.worker().deliveries, "another attempt");
            equal(delivered.redelivered(), true, "redelivered");
            equal(delivered.tag() > first, true, "the tag is a new one");
        }
        expectDeath(app, "hopeless");
    }

    private static void expectDeath(Running app, String body) {
        Message dead = app.awaitMessage("deadLetters");
        equal(new String(dead.getBody()), body, "the dead letter");
        List<Map<String, ?>> deaths = dead.getMessageProperties().getXDeathHeader();
        equal(deaths.get(0).get("reason"), "rejected", "the reason");
        equal(deaths.get(0).get("queue"), app.queue("work"), "the queue");
        equal(deaths.get(0).get("count"), 1L, "the count");
    }
}
