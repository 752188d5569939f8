// Browsers refuse workers on pages opened from a folder (file:). There, this runs the worker of
// the site's search in a hidden frame of the page instead. On a web server it does nothing.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const reply = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = new Promise((resolve) => {
        inside.postMessage = reply;
        inside.importScripts = (...urls) =>
          urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
        load(inside, url).then(resolve);
      });
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => {
        const event = new inside.MessageEvent("message", { data: structuredClone(data) });
        inside.dispatchEvent(event);
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}

function load(inside, url) {
  return new Promise((resolve, reject) => {
    const script = inside.document.createElement("script");
    script.src = new URL(url, document.baseURI).href;
    script.onload = resolve;
    script.onerror = reject;
    inside.document.body.append(script);
  });
}
