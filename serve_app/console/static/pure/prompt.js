// Divides a prompt of the diffusion flavour into pieces for display. The service has its own parser.

const PIECES =
  /\\[()[\]\\]|<lora:[^<>]*>|\b(?:AND|BREAK)\b|[()[\]|]|:\s*[+-]?(?:\d+\.?\d*|\.\d+)(?=\s*[)\]])|:/g;

const OPENS = { ")": "(", "]": "[" };

/** Returns [{text, kind, depth}]. The joined texts are `text`. */
export function pieces(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(PIECES)) {
    if (match.index > at) found.push({ text: text.slice(at, match.index), kind: "text", depth: 0 });
    found.push({ text: match[0], kind: kindOf(match[0]), depth: 0 });
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push({ text: text.slice(at), kind: "text", depth: 0 });
  return nested(found);
}

function kindOf(piece) {
  if (piece.startsWith("\\")) return "escape";
  if (piece.startsWith("<")) return "lora";
  if (piece === "AND" || piece === "BREAK") return "keyword";
  if (piece === "|") return "bar";
  if (piece === ":") return "colon";
  return piece.startsWith(":") ? "number" : "bracket";
}

/** Sets the depth of each piece in brackets. A bracket without a partner has the kind `stray`. */
function nested(found) {
  const partners = matched(found);
  const inside = [];
  return found.map((piece, index) => {
    if (piece.kind === "bracket" && !partners.has(index)) return { ...piece, kind: "stray", depth: inside.length };
    if (piece.kind === "bracket" && piece.text in OPENS) inside.pop();
    const shown = { ...piece, kind: meaning(piece, inside.at(-1)), depth: inside.length };
    if (piece.kind === "bracket" && !(piece.text in OPENS)) inside.push(piece.text);
    return shown;
  });
}

/** Returns the kind of a piece. Colons and bars have a meaning only in square brackets, numbers in all brackets. */
function meaning(piece, around) {
  if (piece.kind === "colon" || piece.kind === "bar") return around === "[" ? piece.kind : "text";
  return piece.kind === "number" && around === undefined ? "text" : piece.kind;
}

function matched(found) {
  const open = [];
  const partners = new Set();
  found.forEach((piece, index) => {
    if (piece.kind !== "bracket") return;
    if (!(piece.text in OPENS)) open.push(index);
    else if (open.length && found[open.at(-1)].text === OPENS[piece.text]) {
      partners.add(open.pop()).add(index);
    }
  });
  return partners;
}

/** Returns the names of the LoRAs in a prompt. */
export function loras(text) {
  return pieces(text)
    .filter((piece) => piece.kind === "lora")
    .map((piece) => piece.text.slice("<lora:".length, -1).split(":")[0].trim());
}

/** Returns a text that lists the syntax that a prompt uses. */
export function summary(text) {
  const found = pieces(text);
  const count = (kind, what) => {
    const number = found.filter((piece) => piece.kind === kind && (!what || piece.text === what)).length;
    return number;
  };
  const said = [
    [count("bracket", "("), "weight"],
    [count("bracket", "["), "edit or lighter part"],
    [count("lora"), "LoRA"],
    [count("keyword", "AND"), "AND"],
    [count("keyword", "BREAK"), "BREAK"],
    [count("stray"), "bracket that fits nothing"],
  ];
  return said.filter(([number]) => number).map(([number, name]) => `${number} × ${name}`);
}
