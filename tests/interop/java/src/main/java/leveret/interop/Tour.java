package leveret.interop;

import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.util.function.Consumer;

/**
 * A tour of the broker with RabbitMQ's Java client: {@code java leveret.interop.Tour URL PROXIED_URL}.
 *
 * <p>Prints one line per step, "ok (sentence)" or "FAILED (sentence): why", and exits with 0 when all came true.
 * PROXIED_URL leads to the same broker through a proxy; the line "cut" asks whoever runs this to cut it.
 */
public final class Tour {
    private Tour() {}

    /** Opens a connection to the broker with the usual settings, changed by the caller. */
    interface Connecting {
        Connection with(Consumer<ConnectionFactory> change) throws Exception;
    }

    public static void main(String[] arguments) {
        Steps.step("the tour comes to its end", () -> tour(connecting(arguments[0]), connecting(arguments[1])));
        System.exit(Steps.failures() == 0 ? 0 : 1);
    }

    private static void tour(Connecting connect, Connecting connectByProxy) throws Exception {
        Connection connection = connect.with(factory -> {});
        Publishing.tour(connection, connect);
        Consuming.tour(connection, connect);
        Failing.tour(connection, connect);
        Recovering.tour(connectByProxy);
        connection.close();
    }

    private static Connecting connecting(String url) {
        return change -> {
            ConnectionFactory factory = new ConnectionFactory();
            factory.setUri(url.endsWith("/") ? url.substring(0, url.length() - 1) : url);
            factory.setAutomaticRecoveryEnabled(false);
            change.accept(factory);
            return factory.newConnection("leveret interop tour");
        };
    }
}
