// The index's filter and the graph's tracing; everything is in the page already.
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".claim-filter");
  if (form) {
    const rows = [...document.querySelectorAll(".claim-row")];
    const fields = [...form.querySelectorAll("[data-filter]")];
    const prefix = { paper: "paper-", verdict: "verdict-is-", strength: "strength-" };
    const apply = () => {
      let shown = 0;
      for (const row of rows) {
        row.hidden = !fields.every((f) => {
          if (!f.value) return true;
          if (f.dataset.filter === "text") return row.textContent.toLowerCase().includes(f.value.toLowerCase());
          return row.classList.contains(prefix[f.dataset.filter] + f.value);
        });
        if (!row.hidden) shown += 1;
      }
      form.querySelector("output").textContent = `${shown} of ${rows.length} claims`;
    };
    const asked = new URLSearchParams(location.search);
    for (const f of fields) if (asked.has(f.dataset.filter)) f.value = asked.get(f.dataset.filter);
    form.addEventListener("input", apply);
    form.hidden = false;
    apply();
  }
  for (const svg of document.querySelectorAll(".claim-canvas svg")) {
    svg.parentElement.scrollLeft = (svg.parentElement.scrollWidth - svg.parentElement.clientWidth) / 2;
    const nodes = [...svg.querySelectorAll(".node")];
    const edges = [...svg.querySelectorAll(".edge")];
    const trace = (start, from, to, found) => {
      for (const e of edges) {
        if (e.dataset[from] === start && !found.has(e)) {
          found.add(e);
          trace(e.dataset[to], from, to, found);
        }
      }
      return found;
    };
    const clear = () => {
      svg.classList.remove("traced");
      for (const e of [...edges, ...nodes]) e.classList.remove("on");
    };
    const show = (node) => {
      clear();
      const id = node.dataset.id;
      const lines = new Set([...trace(id, "to", "from", new Set()), ...trace(id, "from", "to", new Set())]);
      const names = new Set([id]);
      for (const e of lines) {
        e.classList.add("on");
        names.add(e.dataset.from).add(e.dataset.to);
      }
      for (const n of nodes) n.classList.toggle("on", names.has(n.dataset.id));
      svg.classList.add("traced");
    };
    for (const node of nodes) {
      node.addEventListener("pointerenter", () => show(node));
      node.addEventListener("focus", () => show(node));
      node.addEventListener("pointerleave", clear);
      node.addEventListener("blur", clear);
    }
  }
});

// MathJax does not break formulas inside a sentence: one that is wider than its paragraph gets a line that scrolls.
window.addEventListener("load", () => {
  const formulas = [...document.querySelectorAll("span.math")];
  const fit = () => {
    for (const f of formulas) f.classList.remove("wide");
    const wide = formulas.filter((f) => {
      const box = f.closest("p, li, td, dd, div");
      return box && f.getBoundingClientRect().width > box.clientWidth + 1;
    });
    for (const f of wide) f.classList.add("wide");
  };
  const ready = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
  Promise.resolve(ready).then(fit);
  window.addEventListener("resize", fit);
});
