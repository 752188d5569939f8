// Deletes dead letters, counted first, in steps until none is left.
import { post } from "../../lib/api.js";
import { plural } from "../../lib/format.js";
import { showError, showToast } from "../../lib/toasts.js";
import { confirm } from "../../parts/dialog.js";
import { bodyOf, wordsOf } from "./filter.js";

// Counts, asks and deletes the letters of the filter, then calls `onDone`.
export async function purge(filter, onDone) {
  const body = bodyOf(filter);
  try {
    const { found, more } = await post("v1/dead/purge", { ...body, dry_run: true });
    if (found === 0) {
      showToast("No dead letter matches any more");
      return onDone();
    }
    const text = `${more ? "at least " : ""}${plural(found, "dead letter")}`;
    const sure = await confirm({
      title: `Delete ${text}?`,
      text: `Those ${wordsOf(filter)}, with their payloads and errors. This cannot be undone: download them first if they may be needed.`,
      label: `Delete ${text}`,
      count: found,
      danger: true,
    });
    if (!sure) return undefined;
    let total = 0;
    for (let again = true; again; ) {
      const answer = await post("v1/dead/purge", body);
      total += answer.purged;
      again = answer.more && answer.purged > 0;
    }
    showToast(`${plural(total, "dead letter")} deleted`);
  } catch (error) {
    showError(error);
  }
  return onDone();
}
