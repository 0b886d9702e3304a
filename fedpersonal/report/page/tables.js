// Tables that are sorted by clicking their headers, and a filter of the rows of all tables of a page.
const shownRows = { word: "", kind: "" };

// Sorts rows by a column, up or down (1 or -1); cells without a value come last, either way.
function sortRows(rows, column, direction) {
  const keys = new Map();
  for (const row of rows) {
    const text = row.cells[column].dataset.sort ?? "";
    keys.set(row, text === "" ? null : isNumber(Number(text)) ? Number(text) : text.toLowerCase());
  }
  return [...rows].sort((a, b) => {
    const [first, second] = [keys.get(a), keys.get(b)];
    if (first === null || second === null) return (first === null) - (second === null);
    return first === second ? 0 : direction * (first < second ? -1 : 1);
  });
}

charts.sortable = (figure) => {
  const body = figure.querySelector("tbody");
  const heads = [...figure.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    if (![...body.rows].some((row) => row.cells[column].dataset.sort)) return;
    const sort = () => {
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      body.replaceChildren(...sortRows([...body.rows], column, direction));
    };
    head.replaceChildren(html("button", { class: "sort", onclick: sort }, head.textContent));
  });
};

charts.filter = (place, kinds) => {
  const count = html("span", { role: "status" });
  const set = (values) => {
    Object.assign(shownRows, values);
    const rows = [...document.querySelectorAll("[data-kind]")];
    for (const row of rows) {
      const isOfKind = !shownRows.kind || row.dataset.kind === shownRows.kind;
      row.hidden = !isOfKind || !row.textContent.toLowerCase().includes(shownRows.word);
    }
    const hidden = rows.filter((row) => row.hidden).length;
    count.textContent = hidden ? `${number(hidden)} of ${number(rows.length)} rows hidden` : "";
  };
  const input = html("input", { type: "search", oninput: () => set({ word: input.value.trim().toLowerCase() }) });
  place.append(
    html(
      "div", { class: "controls" },
      html("label", {}, "rows with", input),
      choose("kind", [["", "all"], ...kinds], (kind) => set({ kind })),
      count,
    ),
  );
};
