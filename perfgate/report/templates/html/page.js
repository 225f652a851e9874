"use strict";
const addButton = (text, place) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  place.append(button);
  return button;
};
for (const code of document.querySelectorAll(".command code")) {
  const button = addButton("Copy", code.parentElement);
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    if (navigator.clipboard) await navigator.clipboard.writeText(code.textContent).catch(() => {});
    button.textContent = "Copied";
  });
}
for (const table of document.querySelectorAll(".measures")) {
  const rows = table.querySelectorAll("tr.shown-only");
  if (!rows.length) continue;
  const place = document.createElement("p");
  table.prepend(place);
  const button = addButton(`Hide the ${rows.length} that do not gate`, place);
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const isHidden = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(isHidden));
    for (const row of rows) row.hidden = isHidden;
  });
}
