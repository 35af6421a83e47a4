// How a tour is told: steps that run one after the other, each a sentence that came true or the reason why not.
// A step gets its own channels on the tour's connection and waits for events, never for time to pass;
// every wait ends after PATIENCE_MS, so that a broker that says nothing fails a step instead of hanging the tour.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';

const PATIENCE_MS = 15_000;
const run = randomBytes(4).toString('hex');

let failures = 0;

export async function step(sentence, play) {
  try {
    await within(play(), 'the step to end', 4 * PATIENCE_MS);
    console.log(`ok ${sentence}`);
  } catch (error) {
    failures += 1;
    console.log(`FAILED ${sentence}: ${String(error.stack ?? error).replaceAll('\n', ' | ')}`);
  }
}

export function exitCode() {
  return failures === 0 ? 0 : 1;
}

// A name that no other run of a tour uses.
export function named(part) {
  return `interop.node.${run}.${part}`;
}

export function within(promise, what, patienceMs = PATIENCE_MS) {
  let timer;
  const impatience = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${patienceMs} ms for ${what}`)), patienceMs);
  });
  return Promise.race([promise, impatience]).finally(() => clearTimeout(timer));
}

// Values that arrive by callback, taken one at a time in the order of their arrival.
export class Inbox {
  #values = [];
  #waiting = [];

  push(value) {
    const waiter = this.#waiting.shift();
    if (waiter) waiter(value);
    else this.#values.push(value);
  }

  get size() {
    return this.#values.length;
  }

  next(what) {
    if (this.#values.length) return Promise.resolve(this.#values.shift());
    return within(new Promise((resolve) => this.#waiting.push(resolve)), what);
  }

  async take(count, what) {
    const taken = [];
    while (taken.length < count) taken.push(await this.next(what));
    return taken;
  }
}

// A consumer whose deliveries land in an inbox; `null` stands for the broker's cancel, as amqplib has it.
export async function consume(channel, queue, options = {}) {
  const inbox = new Inbox();
  const { consumerTag } = await channel.consume(queue, (message) => inbox.push(message), options);
  return { inbox, consumerTag };
}

// Runs `play` on a channel that is closed afterwards, unless the broker closed it first.
export async function onChannel(connection, play, { confirm = false } = {}) {
  const channel = confirm ? await connection.createConfirmChannel() : await connection.createChannel();
  const errors = new Inbox();
  let open = true;
  channel.on('error', (error) => errors.push(error));
  channel.on('close', () => {
    open = false;
  });
  try {
    return await play(channel, errors);
  } finally {
    if (open) await channel.close();
  }
}

// The error by which the broker closes the channel that `play` uses; the connection must survive it.
export async function expectChannelError(connection, play, code, text) {
  const error = await onChannel(connection, async (channel, errors) => {
    await Promise.resolve(play(channel)).catch(() => {});
    return errors.next('the broker to close the channel');
  });
  assert.equal(error.code, code);
  assert.ok(error.message.includes(text), `${error.message} does not say ${text}`);
  await onChannel(connection, (channel) => channel.checkExchange('amq.direct'));
}

// An exclusive queue that leaves with the connection, holding these bodies, each confirmed.
export async function queueWith(channel, part, bodies, queueArguments = {}) {
  const queue = named(part);
  await channel.assertQueue(queue, { exclusive: true, durable: false, arguments: queueArguments });
  for (const body of bodies) channel.sendToQueue(queue, Buffer.from(body));
  if (bodies.length) await within(channel.waitForConfirms(), 'confirms');
  return queue;
}

export function bodiesOf(messages) {
  return messages.map((message) => message.content.toString());
}
