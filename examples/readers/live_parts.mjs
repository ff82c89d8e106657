#!/usr/bin/env node
// Lists the live parts of a table. Needs only Node.js 20 or later.
//
//   node live_parts.mjs <folder | s3://bucket/prefix> [--as-of MS] [--where-partition NAME=VALUE]... [--json]
//
// This file also documents the format: it implements every rule for readers, each with its section in docs/format.md.
// The environment configures S3: AWS_ENDPOINT_URL, AWS_REGION,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; without a key, requests are anonymous.

import { createHash, createHmac } from "node:crypto";
import { readFile, readdir, realpath, stat } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const READ_ATTEMPTS_MAX = 20; // "How to read": the limit of restarts
const GETS_AT_ONCE = 16;
const COMMIT_TIMEOUT_MS = 5 * 60_000; // "Times"
const NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"; // "Partitions"

const OUR_WRITER = /-\d+-[0-9a-f]{12}\.e\d+\.jsonl$/; // "How to read", 3: this name says what the header says

class TableError extends Error {}

// ---------------------------------------------------------------------------------------------- the table

/** Return the live parts of a table, sorted by key. `asOf`: unix milliseconds; default: now. */
export async function liveParts(uri, { asOf } = {}) {
  const store = await openStore(uri);
  const spec = await readSpec(store);
  const logStore = spec?.log_uri ? await openLogStore(store, spec.log_uri) : store;
  const { parts, horizon } = await readLog(store, logStore, spec !== null);
  if (asOf !== undefined && asOf < horizon && !(await isPinned(logStore, asOf))) {
    // "Time travel": never return an incomplete state.
    throw new TableError(`${store.uri}: a snapshot at ${asOf} has expired; ask for ${horizon} or later.`);
  }
  const isLive = ({ t, tmb }) =>
    asOf === undefined ? tmb === undefined : t <= asOf && (tmb === undefined || tmb > asOf);
  const keys = [...parts.keys()].filter((key) => isLive(parts.get(key)));
  return keys.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))).map((key) => {
    const { b: bytes, r: rows = null } = parts.get(key);
    const partition = key.slice(`${store.prefix}_data/`.length, Math.max(key.lastIndexOf("/"), 0));
    return { path: store.path(key), bytes, rows, partition, values: decodePartition(partition) };
  });
}

/** "The spec": a reader needs little of it. Null for a table of IceDB v3, which has none. */
async function readSpec(store) {
  const key = `${store.prefix}_table.json`;
  const body = await store.get(key);
  const spec = body === null ? null : parse(body, key);
  if (spec !== null && (spec.version ?? 1) !== 1) {
    throw new TableError(`${store.uri}: its spec has version ${spec.version}, and this program reads version 1.`);
  }
  return spec;
}

/** "Two stores": log and claims may be elsewhere. Without the probe, a missing log would look empty. */
async function openLogStore(store, uri) {
  const logStore = await openStore(uri);
  const key = `${logStore.prefix}_claims/probe.json`;
  const owner = parse((await logStore.get(key)) ?? "null", key)?.table;
  if (owner !== store.uri) {
    const instead = owner ? `that is of '${owner}'` : "nothing of it is there";
    throw new TableError(`${store.uri}: its log should be at '${uri}', but ${instead}.`);
  }
  return logStore;
}

/** "How to read": return the state from all log files of one listing. */
async function readLog(store, logStore, hasSpec) {
  for (let attempt = 1; ; attempt += 1) {
    const log = await tryToReadLog(store, logStore, hasSpec);
    if (log !== null) return log;
    // An exclusive commit or a cleanup landed during the listing.
    if (attempt === READ_ATTEMPTS_MAX) {
      throw new TableError(`${store.uri}: ${attempt} listings in a row were torn: a log file that counts is gone.`);
    }
    await new Promise((resolve) => setTimeout(resolve, 5 * attempt));
  }
}

/** Return the log of one listing, or null for an inconsistent listing. */
async function tryToReadLog(store, logStore, hasSpec) {
  const prefix = `${logStore.prefix}_log/`;
  // 1. List all of it, with the slash.
  const listed = (await logStore.list(prefix)).map(({ key }) => key);
  if (listed.length === 0 && !hasSpec) {
    throw new TableError(`${store.uri}: there is no table: it has neither log files nor a _table.json.`);
  }
  const announced = new Map(listed.map((key) => [key, announcedEpoch(key, prefix)]));
  const files = new Map();
  const read = async (keys) => {
    const missing = keys.filter((key) => !files.has(key));
    const bodies = await pooled(missing, (key) => logStore.get(key));
    bodies.forEach((body, i) => files.set(missing[i], body && parseLogFile(body, missing[i], store, prefix)));
  };
  // 2. The head: the greatest epoch. The name announces it; only the header decides.
  let head = null;
  const exclusive = listed.filter((key) => announced.get(key)).sort((a, b) => announced.get(b) - announced.get(a));
  for (const key of exclusive) {
    await read([key]);
    if (files.get(key) === null) return null;
    if (files.get(key).epoch !== undefined) {
      head = files.get(key);
      break;
    }
  }
  // 3. The files of the other epochs in force, which list the files that need not be read.
  const live = new Set(head?.liveEpochs);
  await read(listed.filter((key) => live.has(announced.get(key))));
  const replaced = new Set();
  for (const file of files.values()) {
    // "What is live", 3: only log tombstones of log files with an epoch in force count.
    if (file !== null && live.has(file.epoch)) file.tombstones.forEach((key) => replaced.add(key));
  }
  const isOver = (key) => announced.get(key) < head?.epoch && !live.has(announced.get(key)) && OUR_WRITER.test(key);
  // 4. All files that are not ignored.
  const wanted = listed.filter((key) => !replaced.has(key) && !isOver(key));
  await read(wanted);
  // 6. A required log file is missing.
  if (wanted.some((key) => files.get(key) === null)) return null;
  checkEpochs(files, store);
  // 5. An epoch in force was not listed.
  const epochs = new Set([...files.values()].map((file) => file?.epoch));
  if ([...live].some((epoch) => !epochs.has(epoch))) return null;
  // "What is live", 2: an epoch that the head does not list is ignored.
  const counts = wanted.map((key) => files.get(key)).filter(({ epoch }) => epoch === undefined || live.has(epoch));
  // 7. The horizon is the greatest of all files that were read, ignored or not.
  const horizon = [...files.values()].reduce((most, file) => Math.max(most, file?.horizon ?? 0), 0);
  return { parts: replay(counts), horizon };
}

/** "What is live", 1: two log files of one epoch come from a program that takes no claims. */
function checkEpochs(files, store) {
  const seen = new Map();
  for (const [key, file] of files) {
    if (file?.epoch === undefined) continue;
    if (seen.has(file.epoch)) {
      const both = `'${seen.get(file.epoch)}' and '${key}'`;
      throw new TableError(`${store.uri}: ${both} are of one epoch. A program that takes no claims is at work here.`);
    }
    seen.set(file.epoch, key);
  }
}

/** "What is live", 4: a tombstone always wins. The smallest of several times counts. */
function replay(files) {
  const parts = new Map();
  const smallest = (a, b) => (a === undefined || b < a ? b : a);
  for (const { markers } of files) {
    for (const marker of markers) {
      const seen = parts.get(marker.p) ?? {};
      const tmb = marker.tmb == null ? seen.tmb : smallest(seen.tmb, marker.tmb);
      parts.set(marker.p, { t: smallest(seen.t, marker.t), tmb, b: seen.b ?? marker.b, r: seen.r ?? marker.r });
    }
  }
  return parts;
}

/** "Log files": lines of JSON; the header locates the sections. Unreadable lines are rejected, never skipped. */
function parseLogFile(text, key, store, logPrefix) {
  const damaged = (why) => new TableError(`the log file '${key}' cannot be read: ${why}.`);
  const lines = text.split("\n");
  const header = parse(lines[0], key);
  if (String(header?.v) !== "1") throw damaged(`it has version ${header?.v}, and this program reads version 1`);
  if (lines.at(-1) === "" || (header.n ?? lines.length) !== lines.length) throw damaged("its last lines are cut off");
  const epoch = header.e ?? undefined;
  if (epoch !== undefined) {
    if (!header.le?.includes(epoch)) throw damaged("its epoch is not among its live epochs");
    if (epoch !== announcedEpoch(key, logPrefix)) throw damaged("its name tells another epoch");
  }
  const partsFrom = header.f ?? lines.length;
  const tombstonesFrom = header.tmb ?? partsFrom;
  if (!(tombstonesFrom <= partsFrom && partsFrom <= lines.length)) throw damaged("its header tells wrong lines");
  const objects = (from, to, prefix) =>
    lines.slice(from, to).map((line) => {
      const object = parse(line, key);
      // A log file must not name objects of another table.
      if (isBelow(prefix, object?.p) && Number.isInteger(object.t)) return object;
      throw damaged(`a line of it does not name an object below '${prefix}', with its time`);
    });
  return {
    epoch,
    liveEpochs: header.le ?? [],
    horizon: header.hz ?? 0,
    tombstones: objects(tombstonesFrom, partsFrom, logPrefix).map(({ p }) => p),
    markers: objects(partsFrom, lines.length, `${store.prefix}_data/`),
  };
}

function isBelow(prefix, key) {
  const steps = typeof key === "string" && key.startsWith(prefix) ? key.slice(prefix.length).split("/") : [""];
  return !steps.some((step) => ["", ".", ".."].includes(step));
}

/** "The name of a log file": `<t>[_m]_<writer>.jsonl`; the writer of an exclusive commit ends in `.e<epoch>`. */
function announcedEpoch(key, prefix) {
  const name = /^\d{13}(?:_m)?_([A-Za-z0-9._-]+)\.jsonl$/.exec(key.slice(prefix.length));
  if (name === null || name[1] === "m") {
    throw new TableError(`'${key}' lies among the log files but is not named like one.`);
  }
  const epoch = /\.e([1-9]\d*)$/.exec(name[1]);
  return epoch === null ? undefined : Number(epoch[1]);
}

/** "Pins": a pinned time stays readable. A pin that was stored too late counts as expired. */
async function isPinned(store, asOf) {
  const listed = await store.list(`${store.prefix}_claims/pin-`);
  const inForce = await pooled(listed, async ({ key, storedMs }) => {
    const { as_of, created, expires } = parse((await store.get(key)) ?? "{}", key);
    const forEver = (expires ?? null) === null;
    return as_of === asOf && storedMs - created <= COMMIT_TIMEOUT_MS && (forEver || expires > Date.now());
  });
  return inForce.includes(true);
}

/** "Partitions": a segment's value is percent-encoded UTF-8; a segment without `=` has none. */
function decodePartition(path) {
  const fromHex = (bytes) => Buffer.from(bytes.replaceAll("%", ""), "hex").toString();
  const decode = (text) => text.replace(/(?:%[0-9A-Fa-f]{2})+/g, fromHex);
  const segments = path.split("/").map((segment) => /^([^=]*)=(.*)$/s.exec(segment)).filter((found) => found !== null);
  return Object.fromEntries(
    segments.map(([, name, value]) => [decode(name), value === NULL_VALUE ? null : decode(value)]),
  );
}

function parse(text, key) {
  try {
    return JSON.parse(text);
  } catch {
    throw new TableError(`'${key}' cannot be read: a line of it is cut, or is not JSON.`);
  }
}

/** Return the results of `ask` for all items, with limited concurrency. */
async function pooled(items, ask) {
  const answers = new Array(items.length);
  let next = 0;
  const lane = async () => {
    while (next < items.length) {
      const i = next++;
      answers[i] = await ask(items[i]);
    }
  };
  await Promise.all(Array.from({ length: GETS_AT_ONCE }, lane));
  return answers;
}

// ---------------------------------------------------------------------------------------------- stores

// A store lists keys below a prefix, with the times at which they were stored, and returns an object's text, or null if
// it is missing. "Objects": in a bucket, keys start with the table's prefix. A folder is a separate store without one.
async function openStore(uri) {
  const s3 = /^s3a?:\/\/([^/@:]+)(?:\/(.*?))?\/*$/.exec(uri);
  if (s3 !== null) return new Bucket(s3[1], s3[2] ?? "");
  const isFile = uri.startsWith("file://");
  // Not quoted, because an address may contain a secret.
  if (uri.includes("://") && !isFile) throw new TableError("a table can be at s3://bucket/prefix or in a folder.");
  const folder = isFile ? fileURLToPath(uri) : uri;
  const real = await realpath(folder).catch(() => null);
  if (real === null) throw new TableError(`${folder}: there is no table: no such folder.`);
  return new Folder(real);
}

class Folder {
  prefix = "";

  constructor(root) {
    this.uri = root;
  }

  path(key) {
    return join(this.uri, key);
  }

  async list(prefix) {
    const folder = prefix.slice(0, prefix.lastIndexOf("/") + 1);
    const names = await readdir(this.path(folder)).catch(unlessGone([]));
    // A name that ends in `#` and digits is an unfinished put.
    const keys = names.map((name) => folder + name).filter((key) => key.startsWith(prefix) && !/#\d+$/.test(key));
    return pooled(keys, async (key) => ({ key, storedMs: (await stat(this.path(key)).catch(unlessGone({}))).mtimeMs }));
  }

  async get(key) {
    const body = await readFile(this.path(key)).catch(unlessGone(null));
    return body === null ? null : asText(body, key);
  }
}

function unlessGone(answer) {
  return (error) => {
    if (error.code === "ENOENT") return answer;
    throw error;
  };
}

class Bucket {
  constructor(bucket, prefix) {
    const { AWS_REGION: region = "us-east-1", AWS_ENDPOINT_URL: endpoint } = process.env;
    const address = endpoint || `https://s3.${region}.amazonaws.com`;
    if (!/^https?:\/\//.test(address) || !URL.canParse(address)) {
      throw new TableError("AWS_ENDPOINT_URL must start with http:// or https:// and be a URL.");
    }
    this.uri = `s3://${bucket}${prefix && `/${prefix}`}`;
    this.prefix = prefix && `${prefix}/`;
    this.bucket = bucket;
    this.region = region;
    this.endpoint = new URL(address);
  }

  path(key) {
    return `s3://${this.bucket}/${key}`;
  }

  async list(prefix) {
    const listed = [];
    for (let token; ; ) {
      const answer = await this.#ask("", { "list-type": "2", prefix, ...(token && { "continuation-token": token }) });
      if (!answer.ok) throw await this.#refused(prefix, answer);
      const page = await answer.text();
      for (const [, object] of page.matchAll(/<Contents>(.*?)<\/Contents>/gs)) {
        listed.push({ key: element(object, "Key"), storedMs: Date.parse(element(object, "LastModified")) });
      }
      if (element(page, "IsTruncated") !== "true") return listed;
      token = element(page, "NextContinuationToken");
    }
  }

  async get(key) {
    const answer = await this.#ask(key, {});
    if (answer.ok) return asText(Buffer.from(await answer.arrayBuffer()), key);
    const error = await this.#refused(key, answer);
    if (error.code === "NoSuchKey") return null;
    throw error;
  }

  /** Return the error of a rejected request, with its status and code only. */
  async #refused(key, answer) {
    const code = element(await answer.text(), "Code") ?? "no code";
    const what = `the store answered ${answer.status} (${code})`;
    const error = new TableError(`${this.path(key)}: ${what}. Check endpoint, region, access key and rights.`);
    return Object.assign(error, { code });
  }

  /** Send a GET, and retry if the store is unreachable or busy. */
  async #ask(key, query) {
    for (let attempt = 1; ; attempt += 1) {
      const { url, headers } = this.#signed(key, query);
      const options = { headers, redirect: "manual", signal: AbortSignal.timeout(30_000) };
      const answer = await fetch(url, options).catch((error) => error);
      if (answer.status < 500 && answer.status !== 429) return answer;
      if (attempt === 4) {
        const reason = answer.status ?? answer.cause?.code ?? answer.name;
        throw new TableError(`${this.uri}: the store at ${this.endpoint.host} did not serve a request (${reason}).`);
      }
      await new Promise((resolve) => setTimeout(resolve, 25 * 4 ** attempt));
    }
  }

  /** AWS Signature Version 4 of a GET without a body. */
  #signed(key, query) {
    const base = this.endpoint.pathname.replace(/\/+$/, "");
    const path = [base, this.bucket, ...key.split("/").map(escaped)].join("/");
    const search = Object.entries(query).map((pair) => pair.map(escaped).join("=")).sort().join("&");
    const url = `${this.endpoint.origin}${path}${search && `?${search}`}`;
    const { AWS_ACCESS_KEY_ID: id, AWS_SECRET_ACCESS_KEY: secret, AWS_SESSION_TOKEN: session } = process.env;
    if (!id || !secret) return { url, headers: {} };
    const now = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
    const headers = { "x-amz-content-sha256": sha256(""), "x-amz-date": now };
    if (session) headers["x-amz-security-token"] = session;
    const signed = Object.entries({ host: this.endpoint.host, ...headers }).sort();
    const names = signed.map(([name]) => name).join(";");
    const lines = signed.map(([name, value]) => `${name}:${value}`);
    const request = ["GET", path, search, ...lines, "", names, sha256("")].join("\n");
    const scope = `${now.slice(0, 8)}/${this.region}/s3/aws4_request`;
    const signingKey = scope.split("/").reduce((key, step) => hmac(key, step).digest(), `AWS4${secret}`);
    const signature = hmac(signingKey, ["AWS4-HMAC-SHA256", now, scope, sha256(request)].join("\n")).digest("hex");
    const parts = [`Credential=${id}/${scope}`, `SignedHeaders=${names}`, `Signature=${signature}`];
    headers.authorization = `AWS4-HMAC-SHA256 ${parts.join(", ")}`;
    return { url, headers };
  }
}

const sha256 = (text) => createHash("sha256").update(text).digest("hex");
const hmac = (key, text) => createHmac("sha256", key).update(text);
const percent = (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`;
const escaped = (text) => encodeURIComponent(text).replace(/[!'()*]/g, percent);

/** Return the text of an XML element, or undefined. */
function element(xml, name) {
  const named = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };
  const character = (_, code) => named[code] ?? String.fromCodePoint(Number(code.replace("#", "").replace("x", "0x")));
  const text = new RegExp(`<${name}>(.*?)</${name}>`, "s").exec(xml)?.[1];
  return text?.replace(/&(amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);/g, character);
}

function asText(body, key) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  } catch {
    throw new TableError(`'${key}' cannot be read: it is not UTF-8.`);
  }
}

// ---------------------------------------------------------------------------------------------- the command

const USAGE =
  "usage: node live_parts.mjs <folder | s3://bucket/prefix> [--as-of MS] [--where-partition NAME=VALUE]... [--json]";
const OPTIONS = {
  "as-of": { type: "string" },
  "where-partition": { type: "string", multiple: true, default: [] },
  json: { type: "boolean" },
};

/** Return the parts whose partition has this value, and parts whose paths do not contain the column. */
function inPartition(parts, condition) {
  const [, name, text] = /^([^=]+)=(.*)$/s.exec(condition) ?? [];
  const isNamed = ({ values }) => Object.hasOwn(values, name);
  if (name === undefined || (parts.length > 0 && !parts.some(isNamed))) {
    throw new TableError(`'${condition}' chooses nothing: give NAME=VALUE, with the name of a partition column.`);
  }
  const value = text === NULL_VALUE ? null : text;
  return parts.filter((part) => !isNamed(part) || part.values[name] === value);
}

/** Parse the command line. */
function typed() {
  try {
    const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true });
    if (positionals.length !== 1) throw new TableError("give one table");
    const asOf = values["as-of"] === undefined ? undefined : Number(values["as-of"] || NaN);
    if (asOf !== undefined && !Number.isSafeInteger(asOf)) throw new TableError("--as-of takes unix milliseconds");
    return { ...values, uri: positionals[0], asOf };
  } catch (error) {
    throw new TableError(`${error.message}\n${USAGE}`);
  }
}

async function main() {
  const { uri, asOf, json, "where-partition": conditions } = typed();
  const parts = conditions.reduce(inPartition, await liveParts(uri, { asOf }));
  for (const part of parts) {
    console.log(json ? JSON.stringify(part) : [part.path, part.bytes, part.rows ?? "-", part.partition].join("\t"));
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(await realpath(process.argv[1])).href) {
  await main().catch((error) => {
    console.error(error instanceof TableError ? `error: ${error.message}` : error);
    process.exitCode = 1;
  });
}
