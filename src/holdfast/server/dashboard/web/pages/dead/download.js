// Dead letters as a file of JSON lines, read page by page.
import { get } from "../../lib/api.js";
import { bytes, count, plural } from "../../lib/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { stringifyJson } from "../../lib/json.js";
import { useAction } from "../../lib/resource.js";
import { showToast } from "../../lib/toasts.js";

const PAGE = 200;
const LETTERS_MAX = 10_000;
const BYTES_MAX = 64 * 1024 * 1024;

function save(parts, name) {
  const url = URL.createObjectURL(new Blob(parts, { type: "application/jsonl" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export function Download({ filter }) {
  const [read, setRead] = useState(0);
  const stopped = useRef(false);
  useEffect(() => () => (stopped.current = true), []);
  const loading = useAction(async () => {
    stopped.current = false;
    setRead(0);
    const parts = [];
    let [letters, size, after] = [0, 0, null];
    do {
      const page = await get("v1/dead", { ...filter, limit: PAGE, after });
      const text = page.jobs.map((job) => `${stringifyJson(job)}\n`).join("");
      parts.push(text);
      letters += page.jobs.length;
      size += text.length;
      after = page.after;
      setRead(letters);
    } while (after !== null && letters < LETTERS_MAX && size < BYTES_MAX && !stopped.current);
    if (letters === 0 || stopped.current) return;
    save(parts, `dead-letters-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.jsonl`);
    const rest = after === null ? "" : `. There are more than fit in one file (${count(LETTERS_MAX)} letters or ${bytes(BYTES_MAX)}): narrow the filter`;
    showToast(`${plural(letters, "dead letter")} saved as JSON lines${rest}`);
  });
  return loading.busy
    ? html`<button class="button" onClick=${() => (stopped.current = true)}>Stop: ${count(read)} read</button>`
    : html`<button class="button" onClick=${() => loading.run()}>Download JSONL</button>`;
}
