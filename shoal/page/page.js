"use strict";
(() => {
  const live = document.getElementById("live");
  const parts = new Map(
    [...document.querySelectorAll("[data-part]")].map((one) => [one.dataset.part, one]),
  );

  const showCopy = () => {
    for (const one of document.querySelectorAll(".copy")) one.hidden = false;
  };

  // Read aloud when the state changes, and not with every second that its sentence counts.
  const heard = document.getElementById("heard");
  let level = document.querySelector(".level")?.textContent;
  const tell = () => {
    const now = document.querySelector(".level")?.textContent;
    if (now !== level) heard.textContent = `The run: ${now}.`;
    level = now;
  };

  // The server escaped what others wrote; the policy of this page runs no script but this one.
  const take = (told) => {
    for (const [name, html] of Object.entries(told)) {
      const place = parts.get(name);
      if (!place) continue;
      const open = place.querySelector("details")?.open;
      place.innerHTML = html;
      if (open) place.querySelector("details")?.setAttribute("open", "");
    }
    showCopy();
    tell();
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const said = button.nextElementSibling;
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      said.textContent = "Copied.";
    } catch {
      // Pages without TLS may not copy: what is marked, the reader can.
      getSelection().selectAllChildren(source);
      said.textContent = "Marked: copy it with Ctrl-C.";
    }
  });

  const follow = () => {
    const news = new EventSource("events");
    news.addEventListener("parts", (event) => {
      take(JSON.parse(event.data));
      live.textContent = "Live: this page follows the run.";
    });
    news.addEventListener("error", () => {
      live.textContent = "Not connected; trying again. What you see is older.";
      // After a refusal, such as of too many viewers, the browser gives up.
      if (news.readyState === EventSource.CLOSED) setTimeout(follow, 20000);
    });
  };

  follow();
  showCopy();
})();
