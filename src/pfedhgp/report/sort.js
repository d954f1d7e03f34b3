"use strict";
// Sorts a table by the column whose head is clicked: once upwards, again downwards. Missing values stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const number = (row, i) => parseFloat(row.cells[i].dataset.v);
  const text = (row, i) => row.cells[i].textContent;
  const order = new Intl.Collator(undefined, {numeric: true});
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const rows = [...body.rows], known = rows.some(row => row.cells[i].dataset.v !== undefined);
      rows.sort((a, b) => {
        if (!known) return sign * order.compare(text(a, i), text(b, i));
        const [x, y] = [number(a, i), number(b, i)];
        return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
      });
      body.append(...rows);
    });
  });
}
