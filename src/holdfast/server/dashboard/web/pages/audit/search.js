// Filters entries of the audit log, and looks for older ones.
import { instant } from "../../lib/clock.js";

const PAGE = 500;
const PAGES = 4;

export function matches(row, { q, what, outcome }) {
  if (what && row.what !== what) return false;
  if (outcome && (row.outcome === null ? "unknown" : row.outcome === "done" ? "done" : "failed") !== outcome) return false;
  const text = `${row.who} ${row.token ?? ""} ${row.peer ?? ""} ${row.what} ${row.on}`;
  return text.toLowerCase().includes(q.toLowerCase());
}

// Entries older than the cursor: one page, or up to four if none of them matches.
export async function searchOlder(get, after, filter) {
  const acts = [];
  for (let page = 0; page < PAGES && after !== null; page += 1) {
    const found = await get("v1/audit", { limit: PAGE, after });
    acts.push(...found.acts);
    after = found.after;
    if (found.acts.some((row) => matches(row, filter))) break;
  }
  return { acts, after };
}

export const oldestOf = (entries) =>
  entries.reduce((oldest, { at }) => (instant(at) < instant(oldest) ? at : oldest), entries[0].at);
