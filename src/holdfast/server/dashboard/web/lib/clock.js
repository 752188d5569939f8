// The server's clock, so that ages are right on a machine whose own clock is wrong.
import { useEffect, useState } from "./html.js";

let offset = 0;

export const now = () => Date.now() + offset;

// Takes the server's time from an answer that was requested at `sent`, by this machine's clock.
export function setServerTime(value, sent) {
  const time = instant(value);
  if (time !== null) offset = time - (sent + Date.now()) / 2;
}

const TIME_MAX = 8.64e15; // no Date is later

// Milliseconds of a time of the API, which is a text or a number; null if it is neither.
export function instant(value) {
  if (value === null || value === undefined || value === "") return null;
  const time = typeof value === "string" ? Date.parse(value) : Number(value);
  return Math.abs(time) <= TIME_MAX ? time : null;
}

const tickers = new Set();
setInterval(() => {
  if (document.hidden) return;
  for (const ticker of [...tickers]) ticker();
}, 1000);

// The current time; the component renders again when `step` milliseconds have passed.
export function useNow(step = 1000) {
  const [at, setAt] = useState(now);
  useEffect(() => {
    const ticker = () => setAt((before) => (Math.abs(now() - before) >= step - 100 ? now() : before));
    tickers.add(ticker);
    return () => tickers.delete(ticker);
  }, [step]);
  return at;
}
