// What a consumer sees: prefetch, every way to settle a delivery, gets, cancels, and messages that come back.

import assert from 'node:assert/strict';
import { bodiesOf, consume, named, onChannel, queueWith, step } from './steps.mjs';

const CONFIRM = { confirm: true };

export async function consuming(connection, connect) {
  await step('prefetch holds deliveries back until one is acked', () => onChannel(connection, prefetch, CONFIRM));
  await step('one ack settles every delivery up to its tag', () => ackMultiple(connection));
  await step('nacked messages come back redelivered and in their order', () =>
    onChannel(connection, nackMultiple, CONFIRM));
  await step('a rejected message goes to the dead-letter exchange with its x-death', () =>
    onChannel(connection, deadLetter, CONFIRM));
  await step('an expired message goes to the dead-letter exchange', () => onChannel(connection, expiry, CONFIRM));
  await step('get fetches one message at a time and says when there is none', () =>
    onChannel(connection, polling, CONFIRM));
  await step('deliveries of a closed channel come back to another one', () => orphans(connection));
  await step('a cancelled consumer keeps its unacked delivery and gets no other', () =>
    onChannel(connection, cancel, CONFIRM));
  await step('a consumer hears that its queue was deleted', () => onChannel(connection, cancelNotification));
  await step('the consumer with the higher priority is served first', () =>
    onChannel(connection, consumerPriority, CONFIRM));
  await step('a priority queue gives out the highest priority first', () =>
    onChannel(connection, messagePriority, CONFIRM));
  await step('an exclusive server-named queue leaves with its connection', () => serverNamed(connection, connect));
}

async function prefetch(channel) {
  const queue = await queueWith(channel, 'prefetch', ['a', 'b', 'c', 'd', 'e']);
  await channel.prefetch(2);
  const { inbox } = await consume(channel, queue);
  const [first, second] = await inbox.take(2, 'two deliveries');
  assert.equal((await channel.checkQueue(queue)).messageCount, 3);
  assert.equal(inbox.size, 0);
  channel.ack(first);
  const third = await inbox.next('the third delivery');
  assert.deepEqual(bodiesOf([first, second, third]), ['a', 'b', 'c']);
  assert.equal((await channel.checkQueue(queue)).messageCount, 2);
}

async function ackMultiple(connection) {
  await onChannel(connection, async (publisher) => {
    const queue = await queueWith(publisher, 'multiple', ['a', 'b', 'c', 'd']);
    await onChannel(connection, async (channel) => {
      const { inbox } = await consume(channel, queue);
      const deliveries = await inbox.take(4, 'four deliveries');
      assert.deepEqual(deliveries.map(({ fields }) => fields.deliveryTag), [1, 2, 3, 4]);
      channel.ack(deliveries[2], true);
    });
    const left = await publisher.get(queue, { noAck: true });
    assert.deepEqual([left.content.toString(), left.fields.messageCount], ['d', 0]);
  }, CONFIRM);
}

async function nackMultiple(channel) {
  const queue = await queueWith(channel, 'nacked', ['a', 'b', 'c']);
  const { inbox } = await consume(channel, queue);
  const first = await inbox.take(3, 'three deliveries');
  assert.deepEqual(first.map(({ fields }) => fields.redelivered), [false, false, false]);
  channel.nack(first[2], true, true);
  const second = await inbox.take(3, 'three deliveries again');
  assert.deepEqual(bodiesOf(second), ['a', 'b', 'c']);
  assert.deepEqual(second.map(({ fields }) => fields.redelivered), [true, true, true]);
  channel.reject(second[0], true);
  const third = await inbox.next('the rejected delivery');
  assert.equal(third.content.toString(), 'a');
  channel.ackAll();
  assert.equal((await channel.checkQueue(queue)).messageCount, 0);
}

async function deadLetter(channel) {
  const graveyard = await queueWith(channel, 'graveyard', []);
  const letters = { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': graveyard };
  const queue = await queueWith(channel, 'mortal', ['poison'], letters);
  channel.reject(await channel.get(queue), false);
  const { inbox } = await consume(channel, graveyard, { noAck: true });
  const { content, properties } = await inbox.next('the dead letter');
  assert.equal(content.toString(), 'poison');
  const [death] = properties.headers['x-death'];
  assert.deepEqual([death.queue, death.reason, death.count], [queue, 'rejected', 1]);
  assert.deepEqual([death.exchange, death['routing-keys']], ['', [queue]]);
  assert.equal(properties.headers['x-first-death-reason'], 'rejected');
}

async function expiry(channel) {
  const graveyard = await queueWith(channel, 'expired', []);
  const { inbox } = await consume(channel, graveyard, { noAck: true });
  const letters = { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': graveyard, 'x-message-ttl': 20 };
  const queue = await queueWith(channel, 'hasty', ['late'], letters);
  const { properties } = await inbox.next('the expired message');
  const [death] = properties.headers['x-death'];
  assert.deepEqual([death.queue, death.reason], [queue, 'expired']);
}

async function polling(channel) {
  const queue = await queueWith(channel, 'polled', ['a', 'b']);
  const first = await channel.get(queue);
  assert.deepEqual([first.content.toString(), first.fields.messageCount], ['a', 1]);
  channel.nack(first, false, true);
  const again = await channel.get(queue);
  assert.deepEqual([again.content.toString(), again.fields.redelivered], ['a', true]);
  channel.ack(again);
  const second = await channel.get(queue, { noAck: true });
  assert.deepEqual([second.content.toString(), second.fields.redelivered], ['b', false]);
  assert.equal(await channel.get(queue), false);
}

async function orphans(connection) {
  await onChannel(connection, async (publisher) => {
    const queue = await queueWith(publisher, 'orphans', ['a', 'b']);
    await onChannel(connection, async (channel) => {
      const { inbox } = await consume(channel, queue);
      await inbox.take(2, 'both deliveries');
    });
    const { inbox } = await consume(publisher, queue, { noAck: true });
    const back = await inbox.take(2, 'both deliveries again');
    assert.deepEqual(bodiesOf(back), ['a', 'b']);
    assert.ok(back.every(({ fields }) => fields.redelivered));
  }, CONFIRM);
}

async function cancel(channel) {
  const queue = await queueWith(channel, 'cancelled', ['a']);
  const { inbox, consumerTag } = await consume(channel, queue, { consumerTag: 'mine' });
  assert.equal(consumerTag, 'mine');
  const held = await inbox.next('the delivery');
  await channel.cancel('mine');
  await queueWith(channel, 'cancelled', ['b']);
  assert.deepEqual(await channel.checkQueue(queue), { queue, messageCount: 1, consumerCount: 0 });
  channel.ack(held);
  assert.equal((await channel.get(queue, { noAck: true })).content.toString(), 'b');
  assert.equal(inbox.size, 0);
}

async function cancelNotification(channel) {
  const { queue } = await channel.assertQueue(named('short-lived'), { durable: false });
  const { inbox } = await consume(channel, queue);
  await channel.deleteQueue(queue);
  assert.equal(await inbox.next('the cancel'), null);
}

async function consumerPriority(channel) {
  const queue = await queueWith(channel, 'ranks', []);
  const low = await consume(channel, queue, { priority: 1, noAck: true });
  const high = await consume(channel, queue, { priority: 5, noAck: true });
  await queueWith(channel, 'ranks', ['a', 'b', 'c']);
  assert.deepEqual(bodiesOf(await high.inbox.take(3, 'three deliveries')), ['a', 'b', 'c']);
  assert.equal(low.inbox.size, 0);
}

async function messagePriority(channel) {
  const queue = await queueWith(channel, 'priorities', [], { 'x-max-priority': 5 });
  for (const priority of [0, 5, 3]) channel.sendToQueue(queue, Buffer.from(`${priority}`), { priority });
  await channel.waitForConfirms();
  const { inbox } = await consume(channel, queue, { noAck: true });
  assert.deepEqual(bodiesOf(await inbox.take(3, 'three deliveries')), ['5', '3', '0']);
}

async function serverNamed(connection, connect) {
  const other = await connect();
  const { queue } = await onChannel(other, (channel) => channel.assertQueue('', { exclusive: true }));
  assert.match(queue, /^amq\.gen-/);
  await onChannel(connection, async (channel, errors) => {
    await channel.checkQueue(queue).catch(() => {});
    assert.equal((await errors.next('the refusal')).code, 405);
  });
  await other.close();
  await onChannel(connection, async (channel, errors) => {
    await channel.checkQueue(queue).catch(() => {});
    assert.equal((await errors.next('the queue to be gone')).code, 404);
  });
}
