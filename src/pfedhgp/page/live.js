// Replaces the sections of the page that have changed; the server sends them as they change.
"use strict";
const offline = document.getElementById("offline");
const since = document.getElementById("offline-since");
const source = new EventSource("events");

function replace(id, html) {
  if (id === "title") { document.title = html; return; }
  const part = document.getElementById(id);
  if (part === null) return;
  const open = [...part.querySelectorAll("details[open]")].map(d => d.id);
  const scrolled = [...part.querySelectorAll(".lines")].map(l => l.scrollTop);
  part.innerHTML = html;
  for (const name of open) {
    const details = document.getElementById(name);
    if (details !== null) details.open = true;
  }
  part.querySelectorAll(".lines").forEach((l, i) => { l.scrollTop = scrolled[i] || 0; });
}

source.addEventListener("message", event => {
  offline.hidden = true;
  for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
});
source.addEventListener("over", () => source.close());
source.addEventListener("error", () => {
  if (offline.hidden) since.textContent = new Date().toISOString().slice(11, 19) + " UTC";
  offline.hidden = false;
});
