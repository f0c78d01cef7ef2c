/** Options of all functions. */
export interface Connection {
  /** The server, such as `http://127.0.0.1:4000`. Default: the origin of the page. */
  url?: string | URL;
  /** Sent as `Authorization: Bearer KEY`. */
  key?: string;
  /** Aborting this signal stops the call. */
  signal?: AbortSignal;
}

/** A server error or a connection error. */
export interface TopicsError extends Error {
  /** The HTTP status; 0 if there was no HTTP response. */
  status: number;
  /** The `error.code` of the API, or `connection_lost`, `stream_ended`, `bad_answer`, `closed`. */
  code: string;
  /** The `error.detail` of the API. */
  detail?: Record<string, unknown>;
  /** The pause before the next attempt that the server requests. */
  after_ms?: number;
}

export type Status =
  /** The server has responded. */
  | { state: "open" }
  /** The connection is lost or the server is busy. The next attempt follows after `pause_ms`. */
  | { state: "waiting"; error: TopicsError; pause_ms: number }
  /** The server refuses the request, for example because the key is wrong. It is not retried. */
  | { state: "closed"; error: TopicsError };

/** Parses JSON from the server. Default: `JSON.parse`, which rounds numbers above 2⁵³. */
export type Parse = (text: string) => any;

/** A record to append. A queue also accepts `delay_ms` or `deliver_at`. */
export interface NewRecord {
  data: unknown;
  tag?: string;
  node?: string;
  meta?: Record<string, unknown>;
  delay_ms?: number;
  deliver_at?: number;
}

export interface Message {
  records: NewRecord[];
  /** The node of all records without a `node`. */
  node?: string;
  /** Default: a unique key for each message. */
  idempotency_key?: string;
  /** Whether the topic may be created. Default: true. */
  create?: boolean;
  /** The config of a topic that is created; needs the scope `admin`. */
  config?: Record<string, unknown>;
}

/** The result of an append. */
export interface Receipt {
  topic: string;
  first_seq: number;
  last_seq: number;
  head_seq: number;
  count: number;
  seqs?: number[];
  /** Whether this append created the topic. */
  created: boolean;
  /** Whether the records had been appended before, under the same idempotency key. */
  deduped: boolean;
  [field: string]: unknown;
}

export interface AppendOptions extends Connection, Message {
  topic: string;
  /** The maximum duration of all attempts. Default: 60,000. */
  timeout_ms?: number;
  parse?: Parse;
}

/** Append records. A repeated request appends them once. */
export function append(options: AppendOptions): Promise<Receipt>;

export interface TopicRecord<Data = any> {
  topic: string;
  $seq: number;
  /** When the record was appended, in ms since 1970. */
  $ts: number;
  $tag?: string;
  $node?: string;
  data: Data;
  meta?: Record<string, any>;
}

/** Lost records, from `gap_from` to `gap_to`. */
export interface Tombstone {
  topic: string;
  gap_from: number;
  gap_to: number;
  reason: string;
  earliest_seq: number;
  head_seq: number;
}

type Handler<Event> = (event: Event) => void | Promise<void>;

export interface SubscribeOptions<Data = any> extends Connection {
  topics: string | string[];
  on?: {
    record?: Handler<TopicRecord<Data>>;
    tombstone?: Handler<Tombstone>;
    /** All existing records have been received. */
    caughtUp?: Handler<{ topic: string; head_seq: number }>;
    /** The subscription continues with its other topics. */
    topicDeleted?: Handler<{ topic: string; head_seq: number; reason: string }>;
    status?: Handler<Status>;
  };
  /** The `id` of an earlier subscription: continue after the last event that it handled. */
  id?: string;
  /** Start after this seq. Default: 0, the beginning. */
  from_seq?: number;
  /** Skip the existing records. */
  tail?: boolean;
  /** Records of these nodes are not received. */
  node?: string | string[];
  /** Default: 15,000. A stream that is silent for twice this time is opened again. */
  heartbeat_ms?: number;
  limit?: number;
  max_batch_bytes?: number;
  include_data?: boolean;
  /** Default: true. */
  include_tags?: boolean;
  include_meta?: boolean;
  parse?: Parse;
}

export interface Subscription {
  close(): void;
  /** Identifies the last event that was handled. Store it to continue after a reload. */
  readonly id: string | undefined;
}

/** Receive records. Each record is received once and in order, even if the server restarts. */
export function subscribe<Data = any>(options: SubscribeOptions<Data>): Subscription;

/** A constructor of WebSockets. It must accept `{ headers }` if a key is given. */
export type WebSocketConstructor = new (url: string | URL, options?: any) => any;

export interface PublishOptions extends Connection, Partial<Omit<Message, "records">> {
  /** The topic of messages without a `topic`. */
  topic?: string;
  on?: { status?: Handler<Status> };
  /** The maximum number of messages without an acknowledgement. Default: 1,000. */
  max_pending?: number;
  /** The maximum total length of their JSON. Default: 8,388,608. */
  max_pending_chars?: number;
  /** Default: the global `WebSocket`. Node.js before version 22 has none; use the package `ws`. */
  WebSocket?: WebSocketConstructor;
}

export interface PublishMessage extends Message {
  topic?: string;
  return_seqs?: boolean;
}

export interface Acknowledgement {
  topic: string;
  last_seq: number;
  head_seq: number;
  seqs?: number[];
  deduped?: boolean;
  [field: string]: unknown;
}

export interface Publisher {
  /** Send a message. The promise resolves when the server has acknowledged it. It rejects if the
      server refuses the message, if the publisher is closed before, or with the code
      `too_many_pending` if `ready` was not awaited. */
  send(message: PublishMessage): Promise<Acknowledgement>;
  /** Resolves when another message may be sent. */
  readonly ready: Promise<void>;
  /** The number of messages without an acknowledgement. */
  readonly pending: number;
  /** Close the socket. Pending messages are rejected; they may have been appended. */
  close(): void;
}

/** Append on one WebSocket. A browser cannot send a `key` on it. */
export function publish(options: PublishOptions): Publisher;

export interface Job<Data = any> extends TopicRecord<Data> {
  lease_id: string;
  /** The end of the lease unless it is extended, in ms since 1970. */
  deadline: number;
  /** The number of deliveries, including this one. */
  deliveries: number;
  /** The error of the last failed delivery. */
  last_error?: string;
}

export interface WorkOptions<Data = any> extends Connection {
  queue: string;
  on: {
    /** Handle a job. It is acknowledged when the handler has finished. If the handler throws, the
        job is delivered again after 1, 2, 4, … seconds. `lost` aborts if another worker may have
        the job. */
    job(job: Job<Data>, lost: AbortSignal): unknown;
    /** A handler threw an error. Default: the error is written to the console. */
    failed?: Handler<{ job: Job<Data>; error: unknown }>;
    status?: Handler<Status>;
  };
  /** The maximum number of jobs at the same time, up to 1,000. Default: 1. */
  concurrency?: number;
  /** After this time without an extension, another worker may have a job. Default: 30,000. */
  lease_ms?: number;
  /** The name of this worker. Default: a unique one. */
  node?: string;
  parse?: Parse;
}

export interface Worker {
  /** Stop claiming jobs. Resolves when all claimed jobs are settled. */
  close(): Promise<void>;
  /** Resolves when the worker has stopped and all its jobs are settled. */
  readonly finished: Promise<void>;
}

/** Claim the jobs of a queue and handle them. */
export function work<Data = any>(options: WorkOptions<Data>): Worker;
