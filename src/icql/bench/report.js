document.querySelectorAll("table.sortable thead th").forEach(function (head) {
  head.tabIndex = 0;
  function sort() {
    var table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    var down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("thead th").forEach(function (h) { h.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    function value(row) {
      var cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent : cell.dataset.v;
    }
    Array.from(body.rows).sort(function (a, b) {
      var x = value(a), y = value(b), n = Number(x), m = Number(y);
      var order = x === "" || y === "" || isNaN(n) || isNaN(m) ? x.localeCompare(y) : n - m;
      return down ? -order : order;
    }).forEach(function (row) { body.appendChild(row); });
  }
  head.addEventListener("click", sort);
  head.addEventListener("keydown", function (event) { if (event.key === "Enter") sort(); });
});
