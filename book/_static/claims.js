// The index's filter and the graph's tracing; everything is in the page already.
document.addEventListener("DOMContentLoaded", () => {
  // No line ends within a number such as 1e-16, nor between a formula or a badge and the full stop behind it.
  for (const e of document.querySelectorAll(".pasted-text")) e.classList.toggle("word", !/\s/.test(e.textContent));
  for (const e of document.querySelectorAll("span.math, .claim-badge")) {
    const after = e.nextSibling || (e.parentElement.matches("a") && e.parentElement.nextSibling);
    const mark = after && after.nodeType === Node.TEXT_NODE && /^[.,;:!?)\]]+/.exec(after.data);
    if (!mark) continue;
    after.data = after.data.slice(mark[0].length);
    const tied = document.createElement("span");
    tied.className = "tied";
    e.replaceWith(tied);
    tied.append(e, mark[0]);
  }
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

// MathJax does not break formulas: one that is wider than its paragraph is set smaller, down to what can still be read;
// inside a sentence, one that does not fit even then gets a line that scrolls.
window.addEventListener("load", () => {
  const SMALLEST = 0.62;
  const within = (e) => [...e.querySelectorAll("span.math, div.math")];
  const room = (f) => (f.tagName === "DIV" ? f : f.closest("p, li, td, dd, div")).clientWidth;
  const needed = (f) => Math.max(0, ...[...f.querySelectorAll("mjx-math")].map((m) => m.getBoundingClientRect().width));
  const fit = (formulas) => {
    for (const f of formulas) {
      f.classList.remove("wide");
      f.style.fontSize = "";
    }
    // What is folded away has no width yet, and is fitted when it opens.
    const tight = formulas.map((f) => [f, room(f), needed(f)]).filter(([, has, asks]) => has > 0 && asks > has + 1);
    for (const [f, has, asks] of tight) f.style.fontSize = `${Math.max(SMALLEST, (0.99 * has) / asks)}em`;
    for (const [f] of tight) if (f.tagName === "SPAN" && needed(f) > room(f) + 1) f.classList.add("wide");
  };
  const ready = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
  Promise.resolve(ready).then(() => fit(within(document)));
  window.addEventListener("resize", () => fit(within(document)));
  for (const e of document.querySelectorAll("details")) e.addEventListener("toggle", () => fit(within(e)));
});

// On a phone, figures of several panels scroll in their box rather than shrink until nobody can read them.
window.addEventListener("load", () => {
  const fit = () => {
    for (const picture of document.querySelectorAll(".cell_output img")) {
      const panels = window.innerWidth <= 700 && picture.naturalWidth > 640;
      picture.style.minWidth = panels ? `${Math.round(0.72 * picture.naturalWidth)}px` : "";
    }
  };
  fit();
  window.addEventListener("resize", fit);
});
