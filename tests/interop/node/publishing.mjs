// What a publisher sees: confirms, returns, refusals, transactions, bodies and properties that arrive as sent.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { bodiesOf, consume, Inbox, named, onChannel, queueWith, step, within } from './steps.mjs';

const CONFIRM = { confirm: true };

// amqplib speaks tx but offers no methods for it; its rpc takes (class << 16) | method.
const TX = {
  select: 0x5a000a, selectOk: 0x5a000b, commit: 0x5a0014, commitOk: 0x5a0015, rollback: 0x5a001e, rollbackOk: 0x5a001f,
};

export async function publishing(connection, connect) {
  await step('declared exchanges route what is published to bound queues', () =>
    onChannel(connection, routing, CONFIRM));
  await step('a thousand persistent messages are confirmed', () => onChannel(connection, confirms, CONFIRM));
  await step('a mandatory message without a queue comes back before its confirm', () =>
    onChannel(connection, returnsFirst, CONFIRM));
  await step('a full queue that rejects publishes nacks them', () => onChannel(connection, refusal, CONFIRM));
  await step('a transaction shows its messages after the commit and forgets them after a rollback', () =>
    onChannel(connection, transaction));
  await step('bodies of no byte and of three MiB arrive whole', () => onChannel(connection, bodies, CONFIRM));
  await step('a body of 100 kB arrives whole over frames of 4 kB', () => smallFrames(connect));
  await step('headers of all types and all properties arrive as they were sent', () =>
    onChannel(connection, properties, CONFIRM));
}

async function routing(channel) {
  const { queue } = await channel.assertQueue(named('routed'), { exclusive: true, durable: false });
  await declareExchanges(channel);
  await channel.bindQueue(queue, named('topic'), 'stock.*.#');
  await channel.bindQueue(queue, named('headers'), '', { 'x-match': 'all', colour: 'grey', legs: 4 });
  await channel.bindExchange(named('topic'), named('fanout'), '');
  const { inbox } = await consume(channel, queue, { noAck: true });
  channel.publish(named('topic'), 'stock.de.frankfurt', Buffer.from('topic'));
  channel.publish(named('topic'), 'weather.de', Buffer.from('not bound'));
  channel.publish(named('fanout'), 'stock.fr', Buffer.from('through an exchange'));
  channel.publish(named('headers'), '', Buffer.from('headers'), { headers: { colour: 'grey', legs: 4 } });
  await within(channel.waitForConfirms(), 'confirms');
  const arrived = bodiesOf(await inbox.take(3, 'deliveries'));
  assert.deepEqual(arrived, ['topic', 'through an exchange', 'headers']);
  await channel.unbindQueue(queue, named('topic'), 'stock.*.#');
  await channel.unbindExchange(named('topic'), named('fanout'), '');
  for (const part of ['topic', 'fanout', 'headers']) await channel.deleteExchange(named(part));
}

async function declareExchanges(channel) {
  await channel.assertExchange(named('topic'), 'topic', { durable: true });
  await channel.assertExchange(named('fanout'), 'fanout', { durable: false });
  await channel.assertExchange(named('headers'), 'headers', { durable: false });
}

async function confirms(channel) {
  const { queue } = await channel.assertQueue(named('confirmed'), { durable: true });
  const confirmed = [];
  for (let number = 0; number < 1000; number += 1) {
    channel.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true }, (error) => {
      confirmed.push(error ? `nack ${number}` : number);
    });
  }
  await within(channel.waitForConfirms(), 'a thousand confirms');
  assert.deepEqual(confirmed.toSorted((a, b) => a - b), [...Array(1000).keys()]);
  const { messageCount } = await channel.deleteQueue(queue);
  assert.equal(messageCount, 1000);
}

async function returnsFirst(channel) {
  const events = new Inbox();
  channel.on('return', (message) => events.push(message));
  channel.publish('amq.direct', named('nowhere'), Buffer.from('come back'), { mandatory: true }, (error) =>
    events.push(error ?? 'confirm'));
  const [returned, confirm] = await events.take(2, 'the return and the confirm');
  assert.equal(returned.fields.replyCode, 312);
  assert.equal(returned.fields.replyText, 'NO_ROUTE');
  assert.equal(returned.fields.exchange, 'amq.direct');
  assert.equal(returned.fields.routingKey, named('nowhere'));
  assert.equal(returned.content.toString(), 'come back');
  assert.equal(confirm, 'confirm');
}

async function refusal(channel) {
  const limits = { 'x-max-length': 1, 'x-overflow': 'reject-publish' };
  const queue = await queueWith(channel, 'full', ['first'], limits);
  const outcome = new Inbox();
  channel.sendToQueue(queue, Buffer.from('second'), {}, (error) => outcome.push(error));
  const error = await outcome.next('the nack');
  assert.match(error.message, /nacked/);
  assert.equal((await channel.checkQueue(queue)).messageCount, 1);
}

async function transaction(channel) {
  const { queue } = await channel.assertQueue(named('tx'), { exclusive: true, durable: false });
  await channel.rpc(TX.select, {}, TX.selectOk);
  channel.sendToQueue(queue, Buffer.from('kept'));
  assert.equal((await channel.checkQueue(queue)).messageCount, 0);
  await channel.rpc(TX.commit, {}, TX.commitOk);
  assert.equal((await channel.checkQueue(queue)).messageCount, 1);
  channel.sendToQueue(queue, Buffer.from('forgotten'));
  await channel.rpc(TX.rollback, {}, TX.rollbackOk);
  const message = await channel.get(queue);
  assert.equal(message.content.toString(), 'kept');
  channel.ack(message);
  await channel.rpc(TX.rollback, {}, TX.rollbackOk);
  await channel.recover();
  const again = await channel.get(queue);
  assert.equal(again.fields.redelivered, true);
  channel.ack(again);
  await channel.rpc(TX.commit, {}, TX.commitOk);
  assert.equal((await channel.deleteQueue(queue)).messageCount, 0);
}

async function bodies(channel) {
  const queue = await queueWith(channel, 'bodies', []);
  const large = Buffer.alloc(3 * 1024 * 1024 + 7, 'leveret');
  channel.sendToQueue(queue, Buffer.alloc(0));
  channel.sendToQueue(queue, large, { persistent: true });
  await within(channel.waitForConfirms(), 'confirms');
  const { inbox } = await consume(channel, queue, { noAck: true });
  const [empty, whole] = await inbox.take(2, 'both bodies');
  assert.equal(empty.content.length, 0);
  assert.equal(digest(whole.content), digest(large));
}

function digest(buffer) {
  return createHash('sha256').update(buffer).digest('hex');
}

async function smallFrames(connect) {
  const connection = await connect({ frameMax: 4096 });
  await onChannel(connection, async (channel) => {
    const body = 'x'.repeat(100_000);
    const queue = await queueWith(channel, 'small-frames', [body]);
    assert.equal((await channel.get(queue, { noAck: true })).content.toString(), body);
  }, CONFIRM);
  await connection.close();
}

const HEADERS = {
  nothing: null, yes: true, no: false, text: 'naïve – 兔', bytes: Buffer.from([0, 255, 10]), list: [1, 'two', [3]],
  table: { inner: { most: 'here' }, none: {} }, int8: -128, int16: -32768, int32: -2147483648,
  int64: 2 ** 52, double: 0.1, negative: -1.5,
};

const TYPED_HEADERS = {
  timestamp: { '!': 'timestamp', value: 1_700_000_000 },
  float: { '!': 'float', value: 0.5 },
  decimal: { '!': 'decimal', value: { places: 2, digits: 314 } },
  uint16: { '!': 'uint16', value: 65535 },
};

const PROPERTIES = {
  contentType: 'text/plain', contentEncoding: 'utf-8', persistent: true, priority: 7, correlationId: 'c-1',
  replyTo: 'somewhere', expiration: '600000', messageId: 'm-1', timestamp: 1_700_000_001, type: 'kind',
  userId: 'guest', appId: 'tour',
};

async function properties(channel) {
  const queue = await queueWith(channel, 'properties', []);
  const headers = { ...HEADERS, ...TYPED_HEADERS };
  channel.sendToQueue(queue, Buffer.from('body'), { ...PROPERTIES, headers });
  await within(channel.waitForConfirms(), 'the confirm');
  const { properties: arrived } = await channel.get(queue, { noAck: true });
  const { persistent, ...expected } = PROPERTIES;
  for (const [name, value] of Object.entries(expected)) assert.equal(arrived[name], value, name);
  assert.equal(arrived.deliveryMode, 2);
  const { uint16, float, ...exact } = TYPED_HEADERS;
  assert.deepEqual(arrived.headers, { ...HEADERS, ...exact, float: 0.5, uint16: 65535 });
}
