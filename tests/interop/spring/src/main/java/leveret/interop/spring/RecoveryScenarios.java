package leveret.interop.spring;

import static leveret.interop.spring.Steps.equal;
import static leveret.interop.spring.Steps.step;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * A connection that is cut while the listener works: Spring reconnects, and the unacked message comes again.
 *
 * <p>The cut itself is made by the test that runs this program: it owns the proxy behind the second URL and cuts
 * it when it reads the line "cut".
 */
final class RecoveryScenarios {
    private RecoveryScenarios() {}

    static void tour(String proxiedUrl) {
        step("a listener whose connection is cut gets its unacked message again", () -> {
            try (Running app = Running.with(proxiedUrl, "auto", "correlated")) {
                cutDuringWork(app);
            }
        });
    }

    private static void cutDuringWork(Running app) throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        app.worker().job = (delivered, channel) -> {
            if (!delivered.redelivered() && delivered.body().equals("interrupted")) {
                channel.addShutdownListener(cause -> lost.countDown());
                System.out.println("cut");
                lost.await(Steps.PATIENCE_S, TimeUnit.SECONDS);
            }
            return null;
        };
        app.send("interrupted");
        app.expectDelivery("interrupted", false);
        app.expectDelivery("interrupted", true);
        app.send("afterwards");
        app.expectDelivery("afterwards", false);
        equal(app.leftAfterStop(), 0, "messages left");
    }
}
