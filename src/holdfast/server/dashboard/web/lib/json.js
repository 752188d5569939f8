// JSON without loss: a number that a double cannot hold is kept as its text.

// A number as it was written. It counts as a number in arithmetic, and shows all its digits.
export class ExactNumber {
  constructor(text) {
    this.text = text;
  }

  valueOf() {
    return Number(this.text);
  }

  toString() {
    return this.text;
  }
}

const LONG = /\d{16}|\d[eE]/;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

const nonce = () => `${crypto.getRandomValues(new Uint32Array(4)).join("-")}:`;

// True if a double holds the number: a small enough integer, or at most 17 significant digits.
function isExact(text) {
  const number = Number(text);
  if (/^-?\d+$/.test(text)) return Number.isSafeInteger(number);
  const digits = text.replace(/[eE].*/, "").replace(/^-?[0.]*|\./g, "");
  return Number.isFinite(number) && digits.length <= 17;
}

// An unguessable mark stands for such numbers while JSON.parse runs: no string can imitate one.
export function parseJson(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  const mark = nonce();
  const marked = text.replace(TOKEN, (token) =>
    token[0] === '"' || isExact(token) ? token : `"${mark}${token}"`,
  );
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(mark)
      ? new ExactNumber(value.slice(mark.length))
      : value,
  );
}

export function stringifyJson(value, indent) {
  let mark = null;
  const text = JSON.stringify(
    value,
    (_, each) => {
      if (!(each instanceof ExactNumber)) return each;
      mark ??= nonce();
      return mark + each.text;
    },
    indent,
  );
  return mark === null ? text : text.replaceAll(new RegExp(`"${mark}([^"]*)"`, "g"), "$1");
}

const isObject = (value) =>
  value !== null &&
  typeof value === "object" &&
  !Array.isArray(value) &&
  !(value instanceof ExactNumber);

// Applies a JSON Merge Patch (RFC 7396). Objects that the patch leaves alone stay the same ones, so
// that memoised rows are not rendered again. Results have no prototype: any key is only a key.
export function mergePatch(target, patch) {
  if (!isObject(patch)) return patch;
  const result = Object.create(null);
  if (isObject(target)) for (const key of Object.keys(target)) result[key] = target[key];
  for (const key of Object.keys(patch)) {
    if (patch[key] === null) delete result[key];
    else result[key] = mergePatch(result[key], patch[key]);
  }
  return result;
}
