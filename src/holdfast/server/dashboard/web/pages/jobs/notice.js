// A remark within a page or dialog.
import { html } from "../../lib/html.js";
import { Icon } from "../../parts/icon.js";

export const Notice = ({ children, tone = "info", action }) => html`<div
  class=${`notice notice-${tone}`}
  role="status"
>
  <${Icon} name=${tone} />
  <div class="notice-text"><p>${children}</p></div>
  ${action}
</div>`;
