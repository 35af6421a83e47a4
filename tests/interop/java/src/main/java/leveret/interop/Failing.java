package leveret.interop;

import static leveret.interop.Steps.bytes;
import static leveret.interop.Steps.equal;
import static leveret.interop.Steps.expectChannelError;
import static leveret.interop.Steps.named;
import static leveret.interop.Steps.onChannel;
import static leveret.interop.Steps.onConfirmChannel;
import static leveret.interop.Steps.queueWith;
import static leveret.interop.Steps.says;
import static leveret.interop.Steps.step;
import static leveret.interop.Steps.text;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.GetResponse;
import java.io.IOException;
import java.util.Map;

/** What a client gets for its mistakes: codes and texts by the book, and a connection that goes on where it may. */
final class Failing {
    private Failing() {}

    static void tour(Connection connection, Tour.Connecting connect) {
        step("a wrong password is refused with 403", () -> wrongPassword(connect));
        step("an unknown virtual host is refused with 530", () -> unknownVirtualHost(connect));
        step("a missing queue closes the channel with 404", () -> expectChannelError(connection, AMQP.NOT_FOUND,
                "NOT_FOUND - no queue '" + named("missing") + "' in vhost '/'",
                channel -> channel.basicGet(named("missing"), true)));
        step("an exchange that is missing closes the channel with 404", () -> expectChannelError(connection,
                AMQP.NOT_FOUND, "NOT_FOUND - no exchange '" + named("no-exchange") + "' in vhost '/'",
                channel -> channel.basicPublish(named("no-exchange"), "key", null, bytes("lost"))));
        step("an unknown delivery tag closes the channel with 406", () -> expectChannelError(connection,
                AMQP.PRECONDITION_FAILED, "PRECONDITION_FAILED - unknown delivery tag 100",
                channel -> channel.basicAck(100, false)));
        step("a queue declared again with another argument closes the channel with 406", () -> redeclare(connection));
        step("a transactional channel that wants confirms is closed with 406", () -> expectChannelError(connection,
                AMQP.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", channel -> {
                    channel.txSelect();
                    channel.confirmSelect();
                }));
        step("a reserved name closes the channel with 403", () -> expectChannelError(connection, AMQP.ACCESS_REFUSED,
                "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
                channel -> channel.exchangeDeclare("amq.mine", "direct")));
        step("a queue in use is not deleted if it should be unused", () -> inUse(connection));
        step("a second ack of the same delivery closes the channel with 406", () -> doubleAck(connection));
    }

    private static void wrongPassword(Tour.Connecting connect) throws Exception {
        try (Connection connection = connect.with(factory -> factory.setPassword("wrong"))) {
            throw new AssertionError("the broker let us in by " + connection);
        } catch (AuthenticationFailureException refused) {
            says(refused.getMessage(), "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN");
        }
    }

    private static void unknownVirtualHost(Tour.Connecting connect) throws Exception {
        try (Connection connection = connect.with(factory -> factory.setVirtualHost("nowhere"))) {
            throw new AssertionError("the broker let us in by " + connection);
        } catch (IOException refused) {
            says(refused.getCause().getMessage(), "reply-code=530, reply-text=NOT_ALLOWED - vhost nowhere not found");
        }
    }

    private static void redeclare(Connection connection) throws Exception {
        Map<String, Object> expiring = Map.of("x-expires", 60_000);
        String text = "inequivalent arg 'durable' for queue '" + named("typed")
                + "' in vhost '/': received 'true' but current is 'false'";
        expectChannelError(connection, AMQP.PRECONDITION_FAILED, text, channel -> {
            channel.queueDeclare(named("typed"), false, false, false, expiring);
            channel.queueDeclare(named("typed"), true, false, false, expiring);
        });
    }

    private static void inUse(Connection connection) throws Exception {
        String text = "PRECONDITION_FAILED - queue '" + named("used") + "' in vhost '/' in use";
        expectChannelError(connection, AMQP.PRECONDITION_FAILED, text, channel -> {
            channel.queueDeclare(named("used"), false, true, false, null);
            channel.basicConsume(named("used"), (tag, delivery) -> {}, tag -> {});
            channel.queueDelete(named("used"), true, false);
        });
    }

    private static void doubleAck(Connection connection) throws Exception {
        onConfirmChannel(connection, channel -> queueWith(channel, "twice", null, "once", "held"));
        expectChannelError(connection, AMQP.PRECONDITION_FAILED, "unknown delivery tag 1", channel -> {
            channel.basicGet(named("twice"), false);
            channel.basicGet(named("twice"), false);
            channel.basicAck(1, false);
            channel.basicAck(1, false);
        });
        onChannel(connection, channel -> {
            GetResponse back = channel.basicGet(named("twice"), true);
            equal(text(back.getBody()), "held", "what the channel held");
            equal(back.getEnvelope().isRedeliver(), true, "redelivered");
        });
    }
}
