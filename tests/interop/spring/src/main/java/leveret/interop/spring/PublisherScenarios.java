package leveret.interop.spring;

import static leveret.interop.spring.Steps.PATIENCE_S;
import static leveret.interop.spring.Steps.equal;
import static leveret.interop.spring.Steps.next;
import static leveret.interop.spring.Steps.says;
import static leveret.interop.spring.Steps.step;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ShutdownSignalException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.core.ReturnedMessage;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.ChannelListener;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** The publisher's side: confirms correlated and simple, returns, transactions, requests with their answers. */
final class PublisherScenarios {
    private PublisherScenarios() {}

    static void tour(String url) {
        try (Running app = Running.with(url, "correlated")) {
            step("a correlated confirm names its message", () -> correlated(app));
            step("a message to a missing exchange is nacked with the reason", () -> missingExchange(app));
            step("an unroutable message is returned and then acked", () -> returned(app));
            step("a request gets its answer by direct reply-to", () -> request(app));
        }
        try (Running app = Running.with(url, "simple")) {
            step("simple confirms are awaited within one scope", () -> simple(app));
        }
        try (Running app = Running.with(url, "manual")) {
            step("a transaction that fails publishes nothing", () -> transaction(app));
        }
    }

    private record Confirm(String id, boolean ack, String cause) {}

    /** A template whose confirms and returns go to one queue, in the order of their arrival. */
    private static RabbitTemplate telling(Running app, BlockingQueue<Object> events) {
        RabbitTemplate template = freshTemplate(app);
        template.setConfirmCallback((data, ack, cause) -> events.add(new Confirm(data.getId(), ack, cause)));
        template.setReturnsCallback(events::add);
        return template;
    }

    /** A template of its own: callbacks can be set only once on each. */
    private static RabbitTemplate freshTemplate(Running app) {
        RabbitTemplate template = new RabbitTemplate(app.template().getConnectionFactory());
        template.setMandatory(true);
        return template;
    }

    private static void correlated(Running app) throws Exception {
        BlockingQueue<Object> events = new LinkedBlockingQueue<>();
        CorrelationData data = new CorrelationData("one");
        telling(app, events).convertAndSend(app.exchange(), Application.KEY, "one", data);
        equal(data.getFuture().get(PATIENCE_S, TimeUnit.SECONDS).isAck(), true, "acked");
        equal(data.getReturned(), null, "what was returned");
        equal(next(events, "the callback"), new Confirm("one", true, null), "the callback");
        app.expectDelivery("one", false);
    }

    private static void missingExchange(Running app) throws Exception {
        BlockingQueue<String> closings = closings(app.template());
        CorrelationData data = new CorrelationData("lost");
        app.template().convertAndSend("interop.spring.missing", Application.KEY, "lost", data);
        equal(data.getFuture().get(PATIENCE_S, TimeUnit.SECONDS).isAck(), false, "acked");
        String reason = next(closings, "the channel to be closed");
        says(reason, "NOT_FOUND - no exchange 'interop.spring.missing' in vhost '/'");
        app.send("afterwards");
        app.expectDelivery("afterwards", false);
    }

    /** Why the broker closed channels; the reason in the nack is this one or, if Spring was quicker, its own. */
    private static BlockingQueue<String> closings(RabbitTemplate template) {
        BlockingQueue<String> closings = new LinkedBlockingQueue<>();
        ((CachingConnectionFactory) template.getConnectionFactory()).addChannelListener(new ChannelListener() {
            @Override
            public void onCreate(Channel channel, boolean transactional) {}

            @Override
            public void onShutDown(ShutdownSignalException signal) {
                if (!signal.isInitiatedByApplication()) {
                    closings.add(signal.getMessage());
                }
            }
        });
        return closings;
    }

    private static void returned(Running app) throws Exception {
        BlockingQueue<Object> events = new LinkedBlockingQueue<>();
        telling(app, events).convertAndSend(app.exchange(), "nowhere", "lost", new CorrelationData("lost"));
        ReturnedMessage returned = (ReturnedMessage) next(events, "the return");
        equal(returned.getReplyCode(), 312, "the reply code");
        equal(returned.getReplyText(), "NO_ROUTE", "the reply text");
        equal(returned.getExchange(), app.exchange(), "the exchange");
        equal(returned.getRoutingKey(), "nowhere", "the routing key");
        equal(new String(returned.getMessage().getBody()), "lost", "the body");
        equal(next(events, "the confirm"), new Confirm("lost", true, null), "the confirm");
    }

    private static void request(Running app) throws Exception {
        app.worker().job = (delivered, channel) -> delivered.body().toUpperCase();
        RabbitTemplate template = freshTemplate(app);
        template.setReplyTimeout(PATIENCE_S * 1000);
        Object answer = template.convertSendAndReceive(app.exchange(), Application.KEY, "hare");
        equal(answer, "HARE", "the answer");
        app.expectDelivery("hare", false);
        equal(app.leftAfterStop(), 0, "messages left");
    }

    private static void simple(Running app) throws Exception {
        boolean confirmed = app.template().invoke(operations -> {
            for (int number = 0; number < 100; number++) {
                operations.convertAndSend(app.exchange(), Application.KEY, "simple " + number);
            }
            return operations.waitForConfirms(PATIENCE_S * 1000);
        });
        equal(confirmed, true, "all were acked");
        for (int number = 0; number < 100; number++) {
            app.expectDelivery("simple " + number, false);
        }
        equal(app.leftAfterStop(), 0, "messages left");
    }

    private static void transaction(Running app) throws Exception {
        RabbitTemplate template = freshTemplate(app);
        template.setChannelTransacted(true);
        var manager = new RabbitTransactionManager(template.getConnectionFactory());
        var transaction = new TransactionTemplate(manager);
        transaction.executeWithoutResult(status -> {
            template.convertAndSend("", app.queue("errorQueue"), "rolled back");
            status.setRollbackOnly();
        });
        equal(app.messages("errorQueue"), 0, "messages after the rollback");
        transaction.executeWithoutResult(status -> {
            template.convertAndSend("", app.queue("errorQueue"), "committed");
            equal(app.messages("errorQueue"), 0, "messages before the commit");
        });
        equal(app.messages("errorQueue"), 1, "messages after the commit");
        equal(app.template().receiveAndConvert(app.queue("errorQueue")), "committed", "the message");
    }
}
