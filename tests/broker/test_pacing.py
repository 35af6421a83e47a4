"""Who is held back for the consumers of a queue, and when that ends."""

from dataclasses import dataclass

from leveret.broker.sessions.pacing import Pacing


@dataclass(eq=False)
class Connection:
    has_consumers: bool = False


@dataclass(eq=False)
class Queue:
    """A queue whose consumers have a prefetch of 100."""

    ready: int = 0
    handed_out: int = 0
    settled: int = 0
    has_idle_credit: bool = False

    def is_eager(self, taken: int) -> bool:
        return taken >= 50

    def deliver(self, count: int) -> None:
        self.ready -= count
        self.handed_out += count


class Publishing:
    """One connection that publishes to one queue."""

    def __init__(self, *, has_consumers: bool = False) -> None:
        self.pacing: Pacing[Connection] = Pacing()
        self.queue = Queue()
        self.connection = Connection(has_consumers)

    def turn(self, *, published: int = 0, taken: int = 0, settled: int = 0) -> bool:
        """Play one turn of the broker, and return whether the connection is held afterwards."""
        if published:
            self.queue.ready += published
            self.pacing.published(self.queue, published, [self.connection])
        if taken:
            self.queue.deliver(taken)
        self.queue.settled += settled
        self.pacing.end_turn()
        return self.connection in self.pacing.held


def test_a_publisher_is_held_until_eager_consumers_have_taken_as_much_as_it_published() -> None:
    one = Publishing()
    assert one.turn(published=1000, taken=100)
    assert [one.turn(taken=100) for _ in range(9)] == [True] * 8 + [False]


def test_what_was_published_before_the_consumers_took_anything_counts_too() -> None:
    one = Publishing()
    assert not one.turn(published=500)
    assert one.turn(published=500, taken=100)
    assert [one.turn(taken=100) for _ in range(9)] == [True] * 8 + [False]


def test_nobody_is_held_for_a_queue_that_is_empty_again() -> None:
    one = Publishing()
    assert not one.turn(published=100, taken=100)


def test_nobody_is_held_for_a_queue_that_does_not_grow() -> None:
    one = Publishing()
    one.queue.ready = 1_000_000
    assert not one.turn(published=100, taken=100)


def test_consumers_that_settle_a_few_messages_at_a_time_hold_nobody() -> None:
    one = Publishing()
    assert not any(one.turn(published=1000, taken=10) for _ in range(100))


def test_a_publisher_is_let_go_when_consumers_pause() -> None:
    one = Publishing()
    assert one.turn(published=1000, taken=100)
    assert one.pacing.forgive()
    assert not one.pacing.forgive()
    assert not one.turn(published=1)


def test_a_publisher_stays_held_while_consumers_go_on() -> None:
    one = Publishing()
    assert one.turn(published=1000, taken=100)
    assert one.pacing.forgive()
    assert one.turn(taken=100)
    assert one.pacing.forgive()


def test_a_publisher_waits_for_a_bounded_number_of_hand_outs() -> None:
    one = Publishing()
    assert one.turn(published=1_000_000, taken=100)
    assert [one.turn(taken=100) for _ in range(16)] == [True] * 15 + [False]


def test_a_connection_that_consumes_is_never_held_because_its_acks_are_waited_for() -> None:
    assert not Publishing(has_consumers=True).turn(published=1000, taken=100)


def test_a_connection_that_has_ended_is_forgotten() -> None:
    one = Publishing()
    assert not one.turn(published=1000)
    one.pacing.forget(one.connection)
    assert not one.turn(taken=100)


def test_the_debt_of_a_queue_is_dropped_when_nothing_is_published_for_some_turns() -> None:
    one = Publishing()
    assert not one.turn(published=1000)
    assert not any(one.turn() for _ in range(10))
    assert not one.turn(taken=100)


class Choked(Publishing):
    """Its consumers may hold any number of messages, but their connections take no more at present."""

    def __init__(self) -> None:
        super().__init__()
        self.queue.has_idle_credit = True

    def forgiven(self) -> bool:
        self.pacing.forgive()
        return self.connection in self.pacing.held


def test_a_publisher_is_held_until_quick_consumers_with_idle_credit_have_settled_as_much() -> None:
    one = Choked()
    assert one.turn(published=1000, taken=500, settled=100)
    assert [one.turn(settled=100) for _ in range(9)] == [True] * 8 + [False]


def test_a_publisher_is_held_again_when_it_publishes_to_quick_consumers() -> None:
    one = Choked()
    one.turn(published=1000, taken=500, settled=100)
    assert [one.turn(settled=300) for _ in range(3)] == [True, True, False]
    assert one.turn(published=1)


def test_consumers_with_idle_credit_that_settle_slowly_hold_nobody() -> None:
    one = Choked()
    assert not one.turn(published=1000, taken=500, settled=63)
    for _ in range(100):
        one.forgiven()
        assert not one.turn(published=1000, settled=7)


def test_a_publisher_is_let_go_when_consumers_with_idle_credit_stop_settling() -> None:
    one = Choked()
    assert one.turn(published=100_000, taken=500, settled=512)
    assert [one.forgiven() for _ in range(20)] == [True] * 15 + [False] * 5


def test_a_debt_shrinks_by_a_least_number_of_messages_in_a_given_time() -> None:
    one = Choked()
    assert one.turn(published=612, taken=500, settled=512)
    assert one.forgiven()
    assert one.turn(published=28, settled=1)
    assert one.forgiven()
    assert not one.forgiven()


def test_a_paid_debt_is_dropped_when_nothing_is_published_for_some_turns() -> None:
    one = Choked()
    one.turn(published=1000, taken=500, settled=1000)
    for _ in range(10):
        one.turn()
    assert not one.turn(published=1)
