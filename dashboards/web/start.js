// Load the page again if one of its modules could not be loaded, for example because the network has
// changed. This script is not a module, so it also works if no module does.

{
  const KEY = "broadside-reloads";
  const RELOADS_MAX_COUNT = 3;
  const WAIT_MS = 1000;
  const LOAD_MAX_MS = 30_000;
  const started = () => "started" in document.documentElement.dataset;

  let done = false;
  const failed = () => {
    if (done || started()) return;
    done = true;
    const count = Number(sessionStorage.getItem(KEY) ?? 0);
    if (count < RELOADS_MAX_COUNT) {
      sessionStorage.setItem(KEY, count + 1);
      setTimeout(() => location.reload(), WAIT_MS * (count + 1));
      return;
    }
    const text = document.createElement("p");
    text.className = "notice bad";
    text.setAttribute("role", "alert");
    text.textContent =
      "A script of this page could not be loaded. Check that the coordinator is running, and load the page again.";
    document.getElementById("main").replaceChildren(text);
    sessionStorage.removeItem(KEY);
  };

  setTimeout(failed, LOAD_MAX_MS);
  // The event of an element does not bubble.
  addEventListener("error", ({ target }) => target instanceof HTMLScriptElement && failed(), true);
  addEventListener("load", () => (started() ? sessionStorage.removeItem(KEY) : failed()));
}
