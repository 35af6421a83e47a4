package leveret.interop.spring;

/**
 * Spring AMQP's settings, one after the other, against the broker: {@code java leveret.interop.spring.SpringTour
 * URL PROXIED_URL}.
 *
 * <p>Prints one line per step, "ok (sentence)" or "FAILED (sentence): why", and exits with 0 when all came true.
 * PROXIED_URL leads to the same broker through a proxy; the line "cut" asks whoever runs this to cut it.
 */
public final class SpringTour {
    private SpringTour() {}

    public static void main(String[] arguments) {
        Steps.step("the tour comes to its end", () -> {
            PublisherScenarios.tour(arguments[0]);
            ListenerScenarios.tour(arguments[0]);
            RecoveryScenarios.tour(arguments[1]);
        });
        System.exit(Steps.failures() == 0 ? 0 : 1);
    }
}
