// Browsers start no worker from a file: there, the search's worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.waiting = [];
      this.inside.postToPage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.hasStarted = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      };
      const page = this.inside.document;
      page.open();
      page.write(`<body><script>
        var postMessage = postToPage;
        function importScripts(...urls) {
          return urls.reduce((before, url) => before.then(() => new Promise((done, fail) => {
            const script = document.createElement("script");
            script.src = url;
            script.onload = done;
            script.onerror = fail;
            document.body.appendChild(script);
          })), Promise.resolve());
        }
      </script><script src="${url}" onload="hasStarted()"></script>`);
      page.close();
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
