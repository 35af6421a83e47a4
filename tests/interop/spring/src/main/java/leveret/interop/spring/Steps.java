package leveret.interop.spring;

import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * How a tour is told: steps that run one after the other, each a sentence that came true or the reason why not.
 *
 * <p>A step waits for events, never for time to pass; every wait ends after {@link #PATIENCE_S}, so that a broker
 * that says nothing fails a step instead of hanging the tour.
 */
final class Steps {
    static final long PATIENCE_S = 15;

    private static int failures = 0;

    private Steps() {}

    interface Play {
        void run() throws Exception;
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
        StringBuilder told = new StringBuilder();
        for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
            told.append(told.isEmpty() ? "" : " because ").append(cause);
        }
        return told.toString().replace("\n", " | ");
    }

    static int failures() {
        return failures;
    }

    static void equal(Object got, Object wanted, String what) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError(what + ": got " + got + ", not " + wanted);
        }
    }

    static void says(String text, String part) {
        if (text == null || !text.contains(part)) {
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
}
