// What a client gets for its mistakes: codes and texts by the book, and a connection that goes on where it may.

import assert from 'node:assert/strict';
import { expectChannelError, named, onChannel, queueWith, step } from './steps.mjs';

export async function failing(connection, connect) {
  await step('a wrong password is refused with 403', () =>
    refused(() => connect({ credentials: 'wrong' }), 'ACCESS_REFUSED'));
  await step('an unknown virtual host is refused', () =>
    refused(() => connect({ vhost: 'nowhere' }), 'ConnectionClose'));
  for (const [sentence, play, code, text] of MISTAKES) {
    await step(sentence, () => expectChannelError(connection, play, code, text));
  }
  await step('a renewed secret is taken', () => connection.updateSecret(Buffer.from('guest'), 'renewed'));
  await step('a second ack of the same delivery closes the channel with 406', () => doubleAck(connection));
  await step('an exchange that is missing closes a confirm channel with 404', () => missingExchange(connection));
}

async function refused(connecting, text) {
  const error = await connecting().then(
    () => assert.fail('the broker let us in'),
    (reason) => reason,
  );
  assert.ok(error.message.includes(text), error.message);
}

const MISTAKES = [
  [
    'a missing queue closes the channel with 404',
    (channel) => channel.consume(named('missing'), () => {}),
    404,
    `NOT_FOUND - no queue '${named('missing')}' in vhost '/'`,
  ],
  [
    'an unknown delivery tag closes the channel with 406',
    (channel) => channel.ack({ fields: { deliveryTag: 100 } }),
    406,
    'PRECONDITION_FAILED - unknown delivery tag 100',
  ],
  [
    'a queue declared again with another argument closes the channel with 406',
    async (channel) => {
      await channel.assertQueue(named('typed'), { exclusive: true, durable: false, maxLength: 5 });
      await channel.assertQueue(named('typed'), { exclusive: true, durable: false, maxLength: 6 });
    },
    406,
    `inequivalent arg 'x-max-length' for queue '${named('typed')}' in vhost '/': received '6' but current is '5'`,
  ],
  [
    'an exchange declared again with another type closes the channel with 406',
    (channel) => channel.assertExchange('amq.fanout', 'direct'),
    406,
    "inequivalent arg 'type' for exchange 'amq.fanout' in vhost '/': received 'direct' but current is 'fanout'",
  ],
  [
    'a reserved name closes the channel with 403',
    (channel) => channel.assertQueue('amq.mine'),
    403,
    "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
  ],
  [
    'a second exclusive consumer closes the channel with 403',
    async (channel) => {
      await channel.assertQueue(named('only'), { exclusive: true, durable: false });
      await channel.consume(named('only'), () => {}, { exclusive: true });
      await channel.consume(named('only'), () => {});
    },
    403,
    `ACCESS_REFUSED - queue '${named('only')}' in vhost '/' in exclusive use`,
  ],
];

async function doubleAck(connection) {
  await onChannel(connection, (publisher) => queueWith(publisher, 'twice', ['once', 'held']), { confirm: true });
  await expectChannelError(
    connection,
    async (channel) => {
      const message = await channel.get(named('twice'));
      await channel.get(named('twice'));
      channel.ack(message);
      channel.ack(message);
    },
    406,
    'PRECONDITION_FAILED - unknown delivery tag 1',
  );
  await onChannel(connection, async (channel) => {
    const back = await channel.get(named('twice'), { noAck: true });
    assert.deepEqual([back.content.toString(), back.fields.redelivered], ['held', true]);
  });
}

async function missingExchange(connection) {
  const failure = await onChannel(connection, async (channel, errors) => {
    channel.publish(named('no-exchange'), 'key', Buffer.from('lost'));
    return errors.next('the broker to close the channel');
  }, { confirm: true });
  assert.equal(failure.code, 404);
  assert.ok(failure.message.includes(`no exchange '${named('no-exchange')}' in vhost '/'`), failure.message);
}
