"use strict";
const addButton = (text, place) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  place.append(button);
  return button;
};
const addToggle = (button, show) => {
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(isShown));
    show(isShown);
  });
};

// Copy a command.
for (const code of document.querySelectorAll(".command code")) {
  const button = addButton("Copy", code.parentElement);
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    if (navigator.clipboard) await navigator.clipboard.writeText(code.textContent).catch(() => {});
    button.textContent = "Copied";
  });
}

// Hide metrics: rows that do not gate, and charts by the name of their metric.
for (const table of document.querySelectorAll(".measures")) {
  const rows = table.querySelectorAll("tr.shown-only");
  if (!rows.length) continue;
  const place = document.createElement("p");
  table.prepend(place);
  addToggle(addButton(`Metrics that do not gate (${rows.length})`, place), isShown => {
    for (const row of rows) row.hidden = !isShown;
  });
}
const charts = [...document.querySelectorAll("[data-metric]")];
const metrics = [...new Set(charts.map(chart => chart.dataset.metric))];
if (metrics.length > 1) {
  const place = document.createElement("p");
  place.className = "toggles";
  document.querySelector("header").append(place);
  for (const metric of metrics) {
    addToggle(addButton(metric, place), isShown => {
      for (const chart of charts) if (chart.dataset.metric === metric) chart.hidden = !isShown;
    });
  }
}

// Hide a line of a figure by its entry in the legend.
for (const figure of document.querySelectorAll("figure")) {
  const keys = figure.querySelectorAll(".keys [data-hides]");
  for (const key of keys.length > 1 ? keys : []) {
    const parts = [...key.childNodes];
    const button = addButton("", key);
    button.append(...parts);
    addToggle(button, isShown => {
      for (const shape of figure.querySelectorAll(`svg.plot .${key.dataset.hides}`)) shape.classList.toggle("off", !isShown);
    });
  }
}

// Hide a panel of a figure: what stands below moves up.
for (const figure of document.querySelectorAll("figure")) {
  const plots = [...figure.querySelectorAll("svg.plot")].map(plot => ({
    plot, height: plot.viewBox.baseVal.height, panels: [...plot.querySelectorAll(".panel")],
    fields: [...plot.querySelectorAll(":scope > .block")].map(field => [field, Number(field.getAttribute("height"))]),
  }));
  const names = plots.length ? plots[0].panels.map(panel => panel.dataset.name) : [];
  if (names.filter(Boolean).length < 2) continue;
  const hidden = new Set();
  const stack = () => {
    for (const { plot, height, panels, fields } of plots) {
      let gone = 0;
      for (const panel of panels) {
        const isHidden = hidden.has(panel.dataset.name);
        panel.classList.toggle("off", isHidden);
        panel.setAttribute("transform", `translate(0 ${-gone})`);
        if (isHidden) gone += Number(panel.dataset.height);
      }
      plot.setAttribute("viewBox", `0 0 ${plot.viewBox.baseVal.width} ${height - gone}`);
      for (const [field, full] of fields) field.setAttribute("height", full - gone);
    }
  };
  const place = document.createElement("p");
  place.className = "toggles";
  figure.querySelector(".caption").after(place);
  for (const name of names.filter(Boolean)) {
    addToggle(addButton(name, place), isShown => {
      hidden[isShown ? "delete" : "add"](name);
      stack();
    });
  }
}

// Sort a table by a column: the first one by its letters, the others by their numbers where they have some.
const readCell = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const number = column ? parseFloat(text.replaceAll(",", "")) : NaN;
  return Number.isNaN(number) ? text : number;
};
const compare = (one, other) => {
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return typeof one === "number" ? one - other : one.localeCompare(other);
};
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const titles = [...table.tHead.rows[0].cells];
  titles.forEach((title, column) => {
    const text = title.textContent;
    title.textContent = "";
    addButton(text, title).addEventListener("click", () => {
      const isUp = title.getAttribute("aria-sort") !== "ascending";
      for (const other of titles) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      const rows = [...body.rows].sort((one, other) => compare(readCell(one, column), readCell(other, column)));
      body.append(...(isUp ? rows : rows.reverse()));
    });
  });
}

// A crosshair through the sign that is nearest to the pointer, and its words.
for (const plot of document.querySelectorAll("figure svg.plot")) {
  const signs = [...plot.querySelectorAll(".mark")].filter(sign => sign.querySelector("title"));
  if (signs.length < 2) continue;
  const figure = plot.closest("figure");
  let words = figure.querySelector(".readout");
  if (!words) {
    words = document.createElement("p");
    words.className = "readout";
    figure.append(words);
  }
  const hairs = ["x", "y"].map(() => document.createElementNS("http://www.w3.org/2000/svg", "line"));
  const locate = (x, y) => new DOMPoint(x, y).matrixTransform(plot.getScreenCTM().inverse());
  const point = event => {
    const at = locate(event.clientX, event.clientY);
    let best = null;
    for (const sign of signs) {
      const box = sign.getBoundingClientRect();
      if (!box.width && !box.height) continue;
      const { x, y } = locate(box.x + box.width / 2, box.y + box.height / 2);
      const far = Math.hypot(x - at.x, y - at.y);
      if (!best || far < best.far) best = { far, x, y, text: sign.querySelector("title").textContent };
    }
    if (!best) return;
    const field = plot.viewBox.baseVal;
    const ends = [[best.x, 0, best.x, field.height], [0, best.y, field.width, best.y]];
    hairs.forEach((hair, number) => {
      hair.setAttribute("class", "crosshair");
      ["x1", "y1", "x2", "y2"].forEach((name, place) => hair.setAttribute(name, ends[number][place]));
      plot.append(hair);
    });
    words.textContent = best.text;
  };
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", () => {
    for (const hair of hairs) hair.remove();
    words.textContent = "";
  });
}
