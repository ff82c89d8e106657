"use strict";

// A header sorts its table. Numbers and times begin with the greatest, texts with the least; the next activation
// reverses the order. Cells without a value are always last.

const texts = new Intl.Collator("en", { numeric: true });

function sort(table, header, place) {
  const lines = [...table.tBodies[0].rows].map((row) => ({ row, cell: row.cells[place] }));
  const isNumeric = lines.some(({ cell }) => "number" in cell.dataset);
  const orders = isNumeric ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = header.getAttribute("aria-sort") === orders[0] ? orders[1] : orders[0];
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const compare = isNumeric
    ? (a, b) => a.dataset.number - b.dataset.number
    : (a, b) => texts.compare(a.textContent, b.textContent);
  lines.sort(({ cell: a }, { cell: b }) => {
    const isLast = ("last" in a.dataset) - ("last" in b.dataset);
    return isLast || sign * compare(a, b);
  });
  table.tBodies[0].append(...lines.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, header, place));
  });
}

// The heat map shows the text of the cell that is touched or under the pointer.

const detail = document.querySelector(".heat .detail");
for (const cells of document.querySelectorAll(".heat .cells")) {
  for (const type of ["pointerover", "click"]) {
    cells.addEventListener(type, (event) => {
      const cell = event.target.closest("[title]");
      if (cell !== null) detail.textContent = cell.title;
    });
  }
}
