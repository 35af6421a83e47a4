package leveret.interop;

import static leveret.interop.Steps.PATIENCE_S;
import static leveret.interop.Steps.bytes;
import static leveret.interop.Steps.consume;
import static leveret.interop.Steps.equal;
import static leveret.interop.Steps.named;
import static leveret.interop.Steps.next;
import static leveret.interop.Steps.redelivered;
import static leveret.interop.Steps.step;
import static leveret.interop.Steps.tag;
import static leveret.interop.Steps.text;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoverableConnection;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.impl.recovery.AutorecoveringConnection;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * A connection that is cut in the middle and comes back by the client's automatic and topology recovery.
 *
 * <p>The cut itself is made by the test that runs this program: it owns the proxy behind the second URL and cuts
 * it when it reads the line "cut".
 */
final class Recovering {
    private Recovering() {}

    static void tour(Tour.Connecting connectByProxy) {
        step("a cut connection recovers and gets its unacked delivery again", () -> unacked(connectByProxy));
        step("topology recovery brings back a server-named queue, its binding and its consumer",
                () -> topology(connectByProxy));
    }

    private static void unacked(Tour.Connecting connectByProxy) throws Exception {
        try (RecoverableConnection connection = recoverable(connectByProxy)) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            String queue = channel.queueDeclare(named("recovering"), true, false, false, null).getQueue();
            channel.basicQos(1);
            BlockingQueue<Delivery> deliveries = consume(channel, queue, false);
            publish(channel, "", queue, "before");
            Delivery stale = next(deliveries, "the delivery");
            cutAndRecover(connection);
            Delivery again = next(deliveries, "the delivery again");
            equal(text(again.getBody()), "before", "the body");
            equal(redelivered(again), true, "redelivered");
            channel.basicAck(tag(stale), false); // the client knows that this tag died with the old channel
            channel.basicAck(tag(again), false);
            publish(channel, "", queue, "after");
            equal(text(next(deliveries, "a delivery after the cut").getBody()), "after", "the body");
            channel.basicAck(0, true);
            equal(channel.queueDelete(queue).getMessageCount(), 0, "messages left");
        }
    }

    private static void topology(Tour.Connecting connectByProxy) throws Exception {
        try (RecoverableConnection connection = recoverable(connectByProxy)) {
            BlockingQueue<String> renamed = new LinkedBlockingQueue<>();
            ((AutorecoveringConnection) connection)
                    .addQueueRecoveryListener((before, after) -> renamed.add(before + " " + after));
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            channel.exchangeDeclare(named("lively"), "topic", false, true, null);
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, named("lively"), "hare.#");
            BlockingQueue<Delivery> deliveries = consume(channel, queue, true);
            publish(channel, named("lively"), "hare.brown", "before");
            equal(text(next(deliveries, "the first delivery").getBody()), "before", "the body");
            cutAndRecover(connection);
            String names = next(renamed, "the new name");
            equal(names.startsWith(queue + " amq.gen-") && !names.endsWith(queue), true, "a new name in " + names);
            publish(channel, named("lively"), "hare.white", "after");
            equal(text(next(deliveries, "a delivery after the cut").getBody()), "after", "the body");
        }
    }

    private static RecoverableConnection recoverable(Tour.Connecting connectByProxy) throws Exception {
        return (RecoverableConnection) connectByProxy.with(factory -> {
            factory.setAutomaticRecoveryEnabled(true);
            factory.setTopologyRecoveryEnabled(true);
            factory.setNetworkRecoveryInterval(50);
        });
    }

    private static void publish(Channel channel, String exchange, String key, String body) throws Exception {
        channel.basicPublish(exchange, key, MessageProperties.PERSISTENT_TEXT_PLAIN, bytes(body));
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
    }

    private static void cutAndRecover(RecoverableConnection connection) throws Exception {
        BlockingQueue<Recoverable> recovered = new LinkedBlockingQueue<>();
        connection.addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recoverable) {
                recovered.add(recoverable);
            }

            @Override
            public void handleRecoveryStarted(Recoverable recoverable) {}
        });
        System.out.println("cut");
        next(recovered, "the connection to recover");
    }
}
