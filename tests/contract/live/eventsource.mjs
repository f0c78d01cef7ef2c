// Read one stream with the eventsource package and print every event as a line of JSON.
//
//   node eventsource.mjs URL [BEARER]

import { EventSource } from "eventsource";

const [url, bearer] = process.argv.slice(2);
const authorized = (input, init) =>
  fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${bearer}` } });
const source = new EventSource(url, bearer ? { fetch: authorized } : {});

const names = ["message", "record", "tombstone", "caught-up", "topic-deleted", "job", "error"];
for (const name of names) {
  source.addEventListener(name, (event) => {
    if (event.data === undefined) return; // a broken connection, not an event of the stream
    console.log(JSON.stringify({ event: name, id: event.lastEventId, data: event.data }));
  });
}
