// Sortable and searchable tables, and tooltips of charts. Without scripts the page shows everything except tooltips.
"use strict";

function addSorting(table) {
  const body = table.tBodies[0];
  const first = [...body.rows]; // initial order, kept among equal values
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort by this column";
    head.dataset.title = head.textContent; // for printing
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const order = head.getAttribute("aria-sort");
      const down = order ? order === "ascending" : numeric; // numbers: largest first
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
        return cell.textContent === "-" ? null : numeric ? null : cell.textContent;
      };
      const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
        : String(a).localeCompare(String(b), "en", { numeric: true });
      const rows = first.map((row) => [key(row), row]);
      rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : down ? compare(b, a) : compare(a, b));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

function addFilter(box) {
  const rows = [...box.querySelector("tbody").rows].map((row) => [row, row.textContent.toLowerCase()]);
  const find = document.createElement("div");
  find.className = "find";
  const label = document.createElement("label");
  label.append("Filter rows ");
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "text in any column";
  label.append(input);
  const count = document.createElement("output");
  const showCount = (shown) => { count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`; };
  showCount(rows.length);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    showCount(shown);
  });
  find.append(label, count);
  box.prepend(find);
}

function addTooltips() {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  document.addEventListener("pointermove", (event) => {
    const mark = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip.split("; ").join("\n");
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 10}px`;
  });
}

document.querySelectorAll("table[data-sort]").forEach(addSorting);
document.querySelectorAll("[data-filter]").forEach(addFilter);
addTooltips();
