// Preact, its hooks and htm, bound once: every other module imports them from here.
import { Component, Fragment, createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export * from "../vendor/preact-hooks.js";
export { Component, Fragment, createContext, render };

export const html = htm.bind(h);

// The component, rendered again only if one of its properties changed.
export function memo(Inner) {
  return class Memo extends Component {
    shouldComponentUpdate(next) {
      const before = this.props;
      const names = Object.keys(next);
      if (names.length !== Object.keys(before).length) return true;
      return names.some((name) => !Object.is(before[name], next[name]));
    }

    render(properties) {
      return html`<${Inner} ...${properties} />`;
    }
  };
}

// Joins class names; falsy ones are left out.
export const names = (...all) => all.filter(Boolean).join(" ");
