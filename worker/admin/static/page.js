"use strict";
// Keeps the page as it is on the server: events bring the elements that have changed.

const state = document.getElementById("state");
let ahead = 0; // by how much the server's clock is ahead of this one's, in ms

function span(ms) {
  const s = Math.round(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (s < 60) return s + " s";
  if (m < 60) return m + " min " + (s % 60) + " s";
  if (h < 24) return h + " h " + (m % 60) + " min";
  return d + " d " + (h % 24) + " h";
}

// tick says how long ago each time is, or how soon. The time itself is in its title.
function tick() {
  const now = Date.now() + ahead;
  for (const t of document.querySelectorAll("main time")) {
    const at = Date.parse(t.dateTime);
    if (!t.title) t.title = new Date(at).toLocaleString();
    const text = at > now + 1000 ? "in " + span(at - now) : span(Math.max(0, now - at)) + (t.closest("#moves") ? " ago" : "");
    if (t.textContent !== text) t.textContent = text;
  }
}

function say(text, live) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("live", live);
  state.classList.toggle("lost", !live);
}

// change replaces an element. Whoever has the focus in it keeps it.
function change(id, html) {
  const before = document.getElementById(id);
  if (!before) return;
  const focus = before.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  before.outerHTML = html;
  const now = document.getElementById(id);
  if (now.localName !== "section") now.classList.add("changed");
  if (focus) [...now.querySelectorAll("a")].find((a) => a.getAttribute("href") === focus)?.focus({ preventScroll: true });
}

const events = new EventSource("events" + location.search);
events.onmessage = (e) => {
  const news = JSON.parse(e.data);
  ahead = news.at - Date.now();
  for (const [id, html] of news.blocks) change(id, html);
  tick();
  say("live", true);
};
events.onerror = () => say(events.readyState === EventSource.CLOSED ? "ended: load the page again" : "connection lost, trying again", false);
setInterval(tick, 1000);
tick();
