// A connection that is cut in the middle comes back by amqplib's own recovery: the set-up runs again,
// what was unacked is delivered once more, and publishing goes on. The cut itself is made by the test
// that runs this program: it owns the proxy behind `proxiedUrl` and cuts it when it reads the line "cut".

import assert from 'node:assert/strict';
import amqplib from 'amqplib';
import { Inbox, named, onChannel, step, within } from './steps.mjs';

export async function recovering(proxiedUrl) {
  await step('a cut connection recovers and gets its unacked delivery again', () => recover(proxiedUrl));
}

async function recover(proxiedUrl) {
  const deliveries = new Inbox();
  const connection = await amqplib.connect(proxiedUrl, {
    recovery: { initialDelay: 50, maxDelay: 500, setup: (model) => listen(model, deliveries) },
  });
  const reconnected = new Inbox();
  connection.on('error', () => {});
  connection.on('connect', () => reconnected.push(true));
  await publish(connection, 'before');
  const first = await deliveries.next('the delivery');
  assert.equal(first.message.fields.redelivered, false);
  console.log('cut');
  await reconnected.next('the connection to come back');
  const again = await deliveries.next('the delivery again');
  assert.deepEqual([again.message.content.toString(), again.message.fields.redelivered], ['before', true]);
  again.channel.ack(again.message);
  await publish(connection, 'after');
  const after = await deliveries.next('a delivery after the cut');
  assert.equal(after.message.content.toString(), 'after');
  after.channel.ack(after.message);
  assert.equal((await after.channel.deleteQueue(named('recovering'))).messageCount, 0);
  await connection.close();
}

async function listen(model, deliveries) {
  const channel = await model.createChannel();
  channel.on('error', () => {});
  await channel.assertQueue(named('recovering'), { durable: true });
  await channel.prefetch(1);
  await channel.consume(named('recovering'), (message) => {
    if (message) deliveries.push({ channel, message });
  });
}

function publish(connection, body) {
  return onChannel(connection, async (channel) => {
    channel.sendToQueue(named('recovering'), Buffer.from(body), { persistent: true });
    await within(channel.waitForConfirms(), 'the confirm');
  }, { confirm: true });
}
