// Letters that are read again when others have died, but do not move under the pointer.
import { html, useEffect, useRef, useState } from "../../lib/html.js";

// Calls `reload` when `stamp` changes; while the pointer is in the element of `frame`, `notice` offers
// that instead. After an act of the reader, which changes `acted`, the list may move.
export function useNews(stamp, acted, reload) {
  const frame = useRef(null);
  const [waiting, setWaiting] = useState(false);
  const before = useRef({ stamp, acted });
  const forced = useRef(false);
  const show = () => {
    setWaiting(false);
    reload();
  };
  useEffect(() => {
    const known = before.current;
    before.current = { stamp, acted };
    if (known.acted !== acted) forced.current = true;
    else if (!known.stamp || known.stamp === stamp) return;
    else if (frame.current?.matches(":hover") && !forced.current) return setWaiting(true);
    else forced.current = false;
    show();
  }, [stamp, acted]);
  const leave = () => waiting && show();
  const notice = waiting && html`<button class="button" onClick=${show}>The letters have changed: show them</button>`;
  return { frame, leave, notice, show };
}
