// Reads the texts of a PNG from its tEXt, zTXt and iTXt chunks.
// https://www.w3.org/TR/png-3/#11textinfo

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
const LATIN = new TextDecoder("latin1");
const UTF8 = new TextDecoder("utf-8");
const MOST_BYTES = 16 * 1024 * 1024;

export function isPng(bytes) {
  return SIGNATURE.every((byte, index) => bytes[index] === byte);
}

/** Returns {keyword: text}. Chunks that cannot be read are left out. */
export async function texts(bytes) {
  const found = {};
  if (!isPng(bytes)) return found;
  for (const { type, data } of chunks(bytes)) {
    const read = { tEXt: plain, zTXt: compressed, iTXt: international }[type];
    if (!read) continue;
    try {
      const [keyword, text] = await read(data);
      found[keyword] = text;
    } catch {
      // Skip a damaged chunk, and read the other chunks.
    }
  }
  return found;
}

function* chunks(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = SIGNATURE.length;
  while (at + 12 <= bytes.length) {
    const length = view.getUint32(at);
    const type = LATIN.decode(bytes.subarray(at + 4, at + 8));
    if (type === "IEND" || at + 12 + length > bytes.length) return;
    yield { type, data: bytes.subarray(at + 8, at + 8 + length) };
    at += 12 + length;
  }
}

/** Returns the bytes before the first zero as a Latin-1 text, and the bytes after the zero. */
function cut(data) {
  const end = data.indexOf(0);
  if (end < 0) throw new Error("there is no end");
  return [LATIN.decode(data.subarray(0, end)), data.subarray(end + 1)];
}

function plain(data) {
  const [keyword, rest] = cut(data);
  return [keyword, LATIN.decode(rest)];
}

async function compressed(data) {
  const [keyword, rest] = cut(data);
  return [keyword, LATIN.decode(await inflated(rest.subarray(1)))];
}

async function international(data) {
  const [keyword, rest] = cut(data);
  const isCompressed = rest[0] === 1;
  const [, afterLanguage] = cut(rest.subarray(2));
  const [, text] = cut(afterLanguage);
  return [keyword, UTF8.decode(isCompressed ? await inflated(text) : text)];
}

async function inflated(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  const parts = [];
  let length = 0;
  for await (const part of stream) {
    length += part.length;
    if (length > MOST_BYTES) throw new Error("there is too much");
    parts.push(part);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
