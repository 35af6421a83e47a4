// How a tour is told: steps that run one after the other, each a sentence that came true or the reason why not.
// Inside a step a broken expectation panics, and the step turns that into its FAILED line. A step waits for
// events, never for time to pass; every wait ends after patience, so that a silent broker fails a step only.

package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const patience = 15 * time.Second

var (
	run      = randomName()
	failures = 0
)

func step(sentence string, play func()) {
	defer func() {
		if reason := recover(); reason != nil {
			failures++
			fmt.Printf("FAILED %s: %s\n", sentence, strings.ReplaceAll(fmt.Sprint(reason), "\n", " | "))
			return
		}
		fmt.Println("ok " + sentence)
	}()
	play()
}

func randomName() string {
	bytes := make([]byte, 4)
	must(rand.Read(bytes))
	return hex.EncodeToString(bytes)
}

// named gives a name that no other run of a tour uses.
func named(part string) string {
	return "interop.go." + run + "." + part
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func equal(got, want any, what string) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("%s: got %#v, not %#v", what, got, want))
	}
}

func next[T any](source <-chan T, what string) T {
	select {
	case value, open := <-source:
		if !open {
			panic("the channel closed before " + what)
		}
		return value
	case <-time.After(patience):
		panic(fmt.Sprintf("waited %s for %s", patience, what))
	}
}

func take[T any](source <-chan T, count int, what string) []T {
	var taken []T
	for len(taken) < count {
		taken = append(taken, next(source, what))
	}
	return taken
}

// onChannel runs play on a channel of its own and closes it, unless the broker did so first.
func onChannel(connection *amqp.Connection, play func(*amqp.Channel)) {
	channel := must(connection.Channel())
	defer channel.Close()
	play(channel)
}

// onConfirmChannel does the same in confirm mode.
func onConfirmChannel(connection *amqp.Connection, play func(*amqp.Channel)) {
	onChannel(connection, func(channel *amqp.Channel) {
		check(channel.Confirm(false))
		play(channel)
	})
}

// expectChannelError plays on a channel that the broker closes with that code; the connection must survive it.
func expectChannelError(connection *amqp.Connection, code int, text string, play func(*amqp.Channel) error) {
	onChannel(connection, func(channel *amqp.Channel) {
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		err := play(channel)
		reason := next(closed, "the broker to close the channel")
		equal(reason.Code, code, "the reply code")
		if !strings.Contains(reason.Reason, text) {
			panic(reason.Reason + " does not say " + text)
		}
		var refusal *amqp.Error
		if err != nil && !errors.As(err, &refusal) {
			panic(err)
		}
	})
	onChannel(connection, func(channel *amqp.Channel) {
		check(channel.ExchangeDeclarePassive("amq.direct", "direct", true, false, false, false, nil))
	})
}

// exclusive declares a queue that leaves with the connection.
func exclusive(channel *amqp.Channel, part string, arguments amqp.Table) string {
	return must(channel.QueueDeclare(named(part), false, false, true, false, arguments)).Name
}

// queueWith declares such a queue and fills it with these bodies, each confirmed.
func queueWith(channel *amqp.Channel, part string, arguments amqp.Table, bodies ...string) string {
	queue := exclusive(channel, part, arguments)
	for _, body := range bodies {
		if !publish(channel, queue, amqp.Publishing{Body: []byte(body)}) {
			panic("the broker refused a message")
		}
	}
	return queue
}

// publish sends a message to a queue and says how the broker confirmed it.
func publish(channel *amqp.Channel, queue string, message amqp.Publishing) bool {
	confirm := must(channel.PublishWithDeferredConfirm("", queue, false, false, message))
	next(closing(confirm.Done()), "the confirm")
	return confirm.Acked()
}

// closing turns a channel that is closed into one that says so with a value.
func closing(done <-chan struct{}) <-chan bool {
	told := make(chan bool, 1)
	go func() {
		<-done
		told <- true
	}()
	return told
}

func consume(channel *amqp.Channel, queue string, autoAck bool) <-chan amqp.Delivery {
	return must(channel.Consume(queue, "", autoAck, false, false, false, nil))
}

func ready(channel *amqp.Channel, queue string) int {
	return must(channel.QueueDeclarePassive(queue, false, false, true, false, nil)).Messages
}

func bodiesOf(deliveries []amqp.Delivery) []string {
	var bodies []string
	for _, delivery := range deliveries {
		bodies = append(bodies, string(delivery.Body))
	}
	return bodies
}
