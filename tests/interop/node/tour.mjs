// A tour of the broker with amqplib: node tour.mjs URL PROXIED_URL
//
// Prints one line per step, "ok <sentence>" or "FAILED <sentence>: why", and exits with 0 when all came true.
// PROXIED_URL leads to the same broker through a proxy; the line "cut" asks whoever runs this to cut it.

import amqplib from 'amqplib';
import { consuming } from './consuming.mjs';
import { failing } from './failing.mjs';
import { publishing } from './publishing.mjs';
import { recovering } from './recovering.mjs';
import { exitCode } from './steps.mjs';

const [url, proxiedUrl] = process.argv.slice(2);

function connect({ credentials, vhost, frameMax } = {}) {
  const target = new URL(url);
  if (credentials) target.password = credentials;
  if (vhost) target.pathname = `/${vhost}`;
  if (frameMax) target.searchParams.set('frameMax', frameMax);
  return amqplib.connect(target.href);
}

const connection = await connect();
await publishing(connection, connect);
await consuming(connection, connect);
await failing(connection, connect);
await recovering(proxiedUrl);
await connection.close();
process.exit(exitCode()); // a failed step may have left a connection open
