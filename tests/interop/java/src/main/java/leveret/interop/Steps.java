package leveret.interop;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * How a tour is told: steps that run one after the other, each a sentence that came true or the reason why not.
 *
 * <p>A step waits for events, never for time to pass; every wait ends after {@link #PATIENCE_S}, so that a broker
 * that says nothing fails a step instead of hanging the tour.
 */
final class Steps {
    static final long PATIENCE_S = 15;

    private static final String RUN = UUID.randomUUID().toString().substring(0, 8);

    private static int failures = 0;

    private Steps() {}

    interface Play {
        void run() throws Exception;
    }

    interface OnChannel {
        void run(Channel channel) throws Exception;
    }

    static void step(String sentence, Play play) {
        try {
            play.run();
            System.out.println("ok " + sentence);
        } catch (Exception | AssertionError problem) {
            failures++;
            System.out.println("FAILED " + sentence + ": " + told(problem));
        }
    }

    private static String told(Throwable problem) {
        String place = problem.getStackTrace().length == 0 ? "" : " at " + problem.getStackTrace()[0];
        Throwable cause = problem.getCause();
        return (problem + place + (cause == null ? "" : " because " + cause)).replace("\n", " | ");
    }

    static int failures() {
        return failures;
    }

    /** A name that no other run of a tour uses. */
    static String named(String part) {
        return "interop.java." + RUN + "." + part;
    }

    static void equal(Object got, Object wanted, String what) {
        if (!Objects.deepEquals(got, wanted)) {
            throw new AssertionError(what + ": got " + got + ", not " + wanted);
        }
    }

    static void says(String text, String part) {
        if (!text.contains(part)) {
            throw new AssertionError(text + " does not say " + part);
        }
    }

    static <T> T next(BlockingQueue<T> source, String what) throws InterruptedException {
        T value = source.poll(PATIENCE_S, TimeUnit.SECONDS);
        if (value == null) {
            throw new AssertionError("waited " + PATIENCE_S + " s for " + what);
        }
        return value;
    }

    static <T> List<T> take(BlockingQueue<T> source, int count, String what) throws InterruptedException {
        List<T> taken = new ArrayList<>();
        while (taken.size() < count) {
            taken.add(next(source, what));
        }
        return taken;
    }

    /** Plays on a channel of its own and closes it, unless the broker did so first. */
    static void onChannel(Connection connection, OnChannel play) throws Exception {
        Channel channel = connection.createChannel();
        try {
            play.run(channel);
        } finally {
            if (channel.isOpen()) {
                channel.close();
            }
        }
    }

    static void onConfirmChannel(Connection connection, OnChannel play) throws Exception {
        onChannel(connection, channel -> {
            channel.confirmSelect();
            play.run(channel);
        });
    }

    /** Plays on a channel that the broker closes with that code and text; the connection must survive it. */
    static void expectChannelError(Connection connection, int code, String text, OnChannel play) throws Exception {
        BlockingQueue<ShutdownSignalException> closed = new LinkedBlockingQueue<>();
        onChannel(connection, channel -> {
            channel.addShutdownListener(closed::add);
            try {
                play.run(channel);
            } catch (IOException refused) {
                says(String.valueOf(refused.getCause()), "channel error");
            }
            AMQP.Channel.Close reason = (AMQP.Channel.Close) next(closed, "the channel to be closed").getReason();
            equal(reason.getReplyCode(), code, "the reply code");
            says(reason.getReplyText(), text);
        });
        onChannel(connection, channel -> channel.exchangeDeclarePassive("amq.direct"));
    }

    /** Declares a queue that leaves with the connection. */
    static String exclusive(Channel channel, String part, Map<String, Object> arguments) throws IOException {
        return channel.queueDeclare(named(part), false, true, false, arguments).getQueue();
    }

    static String queueWith(Channel channel, String part, Map<String, Object> arguments, String... bodies)
            throws Exception {
        String queue = exclusive(channel, part, arguments);
        for (String body : bodies) {
            channel.basicPublish("", queue, null, bytes(body));
        }
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        return queue;
    }

    static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean autoAck) throws IOException {
        return consume(channel, queue, autoAck, Map.of());
    }

    static BlockingQueue<Delivery> consume(
            Channel channel, String queue, boolean autoAck, Map<String, Object> arguments) throws IOException {
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, autoAck, arguments, (tag, delivery) -> deliveries.add(delivery), tag -> {});
        return deliveries;
    }

    static long tag(Delivery delivery) {
        return delivery.getEnvelope().getDeliveryTag();
    }

    static boolean redelivered(Delivery delivery) {
        return delivery.getEnvelope().isRedeliver();
    }

    static List<String> bodies(List<Delivery> deliveries) {
        return deliveries.stream().map(delivery -> text(delivery.getBody())).toList();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
