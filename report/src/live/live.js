
// Replaces the sections whose content has changed, without a reload.
(() => {
  "use strict";
  const PAUSE_MILLISECONDS = 2000;
  const PATIENCE_MILLISECONDS = 10000;
  const away = document.getElementById("away");

  const update = (text) => {
    const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (!next) throw new Error("not the fragment");
    const main = document.querySelector("main");
    // What a person has opened stays open.
    for (const card of main.querySelectorAll("details[id][open]")) {
      next.querySelector(`details[id="${CSS.escape(card.id)}"]`)?.setAttribute("open", "open");
    }
    document.title = next.dataset.title;
    const ids = (of) => Array.from(of.children, (section) => section.id).join();
    if (ids(main) !== ids(next)) {
      main.replaceWith(next);
      return;
    }
    for (const section of Array.from(next.children)) {
      const old = document.getElementById(section.id);
      if (!old.isEqualNode(section)) old.replaceWith(section);
    }
  };

  const refresh = async () => {
    if (!document.hidden) {
      try {
        // The connection of a learner that hangs stays open.
        const signal = AbortSignal.timeout(PATIENCE_MILLISECONDS);
        const response = await fetch("fragment", { cache: "no-store", signal });
        if (!response.ok) throw new Error(`status ${response.status}`);
        update(await response.text());
        away.hidden = true;
      } catch {
        away.hidden = false;
      }
    }
    setTimeout(refresh, PAUSE_MILLISECONDS);
  };
  setTimeout(refresh, PAUSE_MILLISECONDS);
})();
