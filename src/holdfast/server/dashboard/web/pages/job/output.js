// The output of a job, as it grows: followed, or paused to read it.
import { bytes } from "../../lib/format.js";
import { html, useEffect, useMemo, useRef, useState } from "../../lib/html.js";
import { CopyButton } from "../../parts/copy.js";
import { Text } from "../../parts/text.js";

const SHOWN = 20_000;

// As a terminal shows it: without colours, and a carriage return overwrites its line.
export const plain = (text) =>
  text
    .replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "")
    .replaceAll("\r\n", "\n")
    .replace(/^.*\r(?=[^\n])/gm, "")
    .replaceAll("\r", "");

export function Output({ output, running }) {
  const [follow, setFollow] = useState(true);
  const [all, setAll] = useState(false);
  const held = useRef(output);
  if (follow || !running) held.current = output;
  const text = useMemo(() => plain(held.current), [held.current]);
  const place = useRef(null);
  const cut = !all && text.length > SHOWN;
  const shown = cut ? text.slice(-SHOWN) : text;
  const behind = output.length - held.current.length;
  useEffect(() => {
    if (follow && running) place.current.scrollTop = place.current.scrollHeight;
  }, [shown, follow]);
  // Scrolling up pauses, and scrolling to the end follows again.
  const scrolled = () => {
    if (!running) return;
    const { scrollTop, scrollHeight, clientHeight } = place.current;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < 24;
    if (isAtEnd !== follow && (isAtEnd || scrollHeight > clientHeight)) setFollow(isAtEnd);
  };
  return html`<section class="panel" id="output" aria-labelledby="output-title">
    <div class="panel-head">
      <h2 id="output-title">Output <span class="hint">${bytes(new Blob([output]).size)}</span></h2>
      <div class="toolbar">
        ${running &&
        html`<span class="hint" role="status">${follow ? "following" : `paused${behind > 0 ? `, ${bytes(behind)} more` : ""}`}</span>
          <button class="button" aria-label=${`${follow ? "Pause" : "Follow"} the output`} onClick=${() => setFollow(!follow)}>${follow ? "Pause" : "Follow"}</button>`}
        <${CopyButton} text=${text} />
      </div>
    </div>
    <div class="panel-body">
      ${cut && html`<button
        class="link"
        onClick=${() => setAll(true)}
      >Show all: ${bytes(text.length - SHOWN)} before this</button>`}
      <pre
        class="output"
        ref=${place}
        tabindex="0"
        role="log"
        aria-label="Output"
        onScroll=${scrolled}
      >${shown ? html`<${Text} value=${shown} />` : html`<span class="hint">Nothing yet.</span>`}</pre>
    </div>
  </section>`;
}
