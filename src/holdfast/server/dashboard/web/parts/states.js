// A page or part without data: loading, empty, failed.
import { sentence } from "../lib/format.js";
import { Component, html } from "../lib/html.js";
import { Icon } from "./icon.js";
import { CopyButton } from "./copy.js";
import { Text } from "./text.js";

export const Loading = ({ what = "data" }) =>
  html`<p class="loading" role="status"><span class="loading-bar"></span>Loading ${what}…</p>`;

// Nothing to show: says so, what would be here, and the first step (a command or children).
export function Empty({ title, children, command }) {
  return html`<div class="empty">
    <h3>${title}</h3>
    ${children && html`<p>${children}</p>`}
    ${command &&
    html`<div class="command"><code>${command}</code><${CopyButton} text=${command} /></div>`}
  </div>`;
}

// An ApiError, or any other: what is wrong and what to do.
export function Failure({ error, retry }) {
  if (!error) return null;
  return html`<div class="notice notice-critical" role="alert">
    <${Icon} name="critical" />
    <div class="notice-text">
      <strong><${Text} value=${sentence(error.message)} max=${500} /></strong>
      ${error.remedy && html`<p>${error.remedy}</p>`}
    </div>
    ${retry && html`<button class="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

// Shows the failure of anything inside instead of a blank page. Give it a key to start anew.
export class ErrorBoundary extends Component {
  constructor(properties) {
    super(properties);
    this.state = { error: null };
  }

  static getDerivedStateFromError(error) {
    return { error };
  }

  render({ children }, { error }) {
    if (error === null) return children;
    const message = `This page failed: ${error.message}`;
    return html`<${Failure}
      error=${{ message, remedy: "Try again, or reload the page." }}
      retry=${() => this.setState({ error: null })}
    />`;
  }
}
