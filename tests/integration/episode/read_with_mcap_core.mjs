// Reads an MCAP with @mcap/core as web viewers do; prints one JSON object.
import { McapIndexedReader } from "@mcap/core";
import { loadDecompressHandlers } from "@mcap/support";
import { createHash } from "node:crypto";
import { open } from "node:fs/promises";

const [path, topic] = process.argv.slice(2);
const file = await open(path);
const size = BigInt((await file.stat()).size);
let reads = 0;
const readable = {
  size: async () => size,
  read: async (offset, length) => {
    reads += 1;
    const buffer = new Uint8Array(Number(length));
    await file.read(buffer, 0, Number(length), Number(offset));
    return buffer;
  },
};
const reader = await McapIndexedReader.Initialize({ readable, decompressHandlers: await loadDecompressHandlers() });
const counts = {};
const hashes = {};
let last = 0n;
let ordered = true;
for await (const message of reader.readMessages(topic ? { topics: [topic] } : {})) {
  const name = reader.channelsById.get(message.channelId).topic;
  counts[name] = (counts[name] ?? 0) + 1;
  (hashes[name] ??= createHash("sha256")).update(message.data);
  ordered &&= message.logTime >= last;
  last = message.logTime;
}
let attachments = 0;
for await (const _ of reader.readAttachments()) attachments += 1;
const content = Object.fromEntries(Object.entries(hashes).map(([name, hash]) => [name, hash.digest("hex")]));
console.log(JSON.stringify({ counts, content, ordered, reads, attachments }));
await file.close();
