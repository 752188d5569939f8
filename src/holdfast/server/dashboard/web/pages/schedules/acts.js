// Acts on a schedule: run now, pause, resume, delete.
import { del, post, v1 } from "../../lib/api.js";
import { html } from "../../lib/html.js";
import { go } from "../../lib/router.js";
import { useMay } from "../../lib/session.js";
import { ActButton } from "../../parts/act.js";

// Commands and webhooks need a scope of their own, also if a schedule enqueues them.
export const isRestricted = ({ task }) => task === "command" || task === "webhook";

export const useMayRun = (row) => {
  const may = useMay();
  return may.act("operate") && (!isRestricted(row) || may.act("run-commands"));
};

export function RunButton({ row, style, after }) {
  if (!useMayRun(row)) return null;
  return html`<${ActButton}
    label="Run now"
    name=${row.name}
    style=${style}
    act=${() => post(v1`schedules/${row.name}/run`)}
    done=${({ id }) => `Enqueued job ${id} of ${row.name}`}
    after=${after}
  />`;
}

export const PauseButton = ({ row, style }) =>
  row.paused
    ? html`<${ActButton}
        label="Resume"
        name=${row.name}
        style=${style}
        act=${() => post(v1`schedules/${row.name}/resume`)}
        done=${`Resumed ${row.name}; ticks during the pause are skipped`}
      />`
    : html`<${ActButton}
        label="Pause"
        name=${row.name}
        style=${style}
        act=${() => post(v1`schedules/${row.name}/pause`)}
        done=${`Paused ${row.name}`}
      />`;

export const DeleteButton = ({ row }) => html`<${ActButton}
  label="Delete"
  style=""
  act=${() => del(v1`schedules/${row.name}`)}
  ask=${{
    title: `Delete the schedule ${row.name}?`,
    text: "It has no more ticks. Jobs that it enqueued stay.",
    label: "Delete the schedule",
    danger: true,
  }}
  done=${`Deleted ${row.name}`}
  after=${() => go("/schedules")}
/>`;
