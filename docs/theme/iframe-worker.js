// Search in pages that are opened from a disk. Browsers start no workers there, so this runs a worker's
// code in a hidden frame of the page instead. On a server nothing changes.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      const script = this.inner.document.createElement("script")
      script.src = new URL(url, location.href).href
      this.ready = new Promise(done => (script.onload = done))
      this.inner.document.body.appendChild(script)
      this.frame = frame
    }

    postMessage(data) {
      this.ready.then(() => {
        const event = new this.inner.MessageEvent("message", { data })
        this.inner.dispatchEvent(event)
        if (this.inner.onmessage) this.inner.onmessage(event)
      })
    }

    terminate() {
      this.frame.remove()
    }
  }
}
