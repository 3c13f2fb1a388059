// What the theme leaves to do for readers who use a keyboard or a screen reader.

// Code and tables that are wider than the page can be scrolled with the keyboard.
function reachScrollable() {
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}

// Each landmark has a name of its own.
function nameLandmarks() {
  const names = new Map();
  for (const nav of document.querySelectorAll("nav")) {
    const label = document.getElementById(nav.getAttribute("aria-labelledby"));
    const name = (nav.getAttribute("aria-label") ?? label?.textContent ?? "Pages").trim();
    const count = (names.get(name) ?? 0) + 1;
    names.set(name, count);
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", count > 1 ? `${name}, part ${count}` : name);
  }
}

// The empty corner of a table is not a header.
function emptyCorners() {
  for (const header of document.querySelectorAll("th:empty")) {
    header.replaceWith(document.createElement("td"));
  }
}

function mend() {
  emptyCorners();
  nameLandmarks();
  reachScrollable();
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", mend);
else mend();
window.addEventListener("load", reachScrollable);
window.addEventListener("resize", reachScrollable);
