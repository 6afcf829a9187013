// Client for the API of this coordinator. The token is stored in sessionStorage, so it will be
// deleted when the tab is closed.

const KEY = "broadside-token";

export class Problem extends Error {
  constructor(status, title, detail, errors = []) {
    super(detail || title);
    Object.assign(this, { status, title, errors });
  }
}

export const token = () => sessionStorage.getItem(KEY);
export const keepToken = (text) => sessionStorage.setItem(KEY, text);
export const dropToken = () => sessionStorage.removeItem(KEY);

export function headers(more = {}) {
  const own = token();
  return own ? { Authorization: `Bearer ${own}`, ...more } : more;
}

// The current time of the coordinator, to within about two seconds. The clock of the browser can
// be wrong by hours, so we do not use it.
let aheadMs = 0;
export const coordinatorNow = () => Date.now() + aheadMs;

// Time to wait for the headers of a response, and for each try of a GET request before the next.
// A browser also ends requests if a network interface of the host appears or disappears.
const RESPONSE_MAX_MS = 30_000;
const RETRY_MS = [300, 1000];

export async function ask(path, { method = "GET", body, more = {} } = {}) {
  const request = {
    method,
    headers: headers(body === undefined ? more : { "Content-Type": "application/json", ...more }),
    body: body === undefined ? undefined : JSON.stringify(body),
  };
  const answer = await attempt(path, request, method === "GET" ? RETRY_MS : []);
  const said = Date.parse(answer.headers.get("Date"));
  if (!Number.isNaN(said)) aheadMs = said - Date.now();
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

// Send a request, and again after each pause while there is no response.
async function attempt(path, request, [pauseMs, ...pauses]) {
  const ended = new AbortController();
  const timer = setTimeout(() => ended.abort(), RESPONSE_MAX_MS);
  try {
    return await fetch(path, { ...request, signal: ended.signal });
  } catch {
    if (pauseMs === undefined) {
      const detail = ended.signal.aborted
        ? `The coordinator has not responded for ${RESPONSE_MAX_MS / 1000} s. Close other tabs of this page, because a browser limits its connections, and check the load of the coordinator.`
        : "The coordinator does not respond. Check that `broadside serve` is running.";
      throw new Problem(0, "No response", detail);
    }
  } finally {
    clearTimeout(timer);
  }
  await new Promise((resolve) => setTimeout(resolve, pauseMs));
  return attempt(path, request, pauses);
}

export async function problemOf(answer) {
  let said = {};
  try {
    said = await answer.json();
  } catch {
    // The response is not JSON. For example, it can be an error page from a proxy.
  }
  if (answer.status === 401) dispatchEvent(new CustomEvent("signed-out", { detail: said.detail }));
  const detail = typeof said.detail === "string" ? said.detail : `HTTP ${answer.status}`;
  return new Problem(answer.status, said.title ?? "Refused", detail, said.errors ?? []);
}

export const read = async (path, options) => (await ask(path, options)).json();
// Read all pages of a list.
export async function readPages(path) {
  const items = [];
  for (let cursor = ""; cursor !== null; ) {
    const answer = await ask(cursor ? `${path}&cursor=${encodeURIComponent(cursor)}` : path);
    items.push(...(await answer.json()));
    cursor = answer.headers.get("Next-Cursor");
  }
  return items;
}

export const send = (method, path, body, more) => read(path, { method, body, more });

// Read a resource that might not exist yet. A 404 response is returned as null, and other errors
// are raised.
export async function readIfThere(path, options) {
  try {
    return await read(path, options);
  } catch (problem) {
    if ([404, 405, 409].includes(problem.status)) return null;
    throw problem;
  }
}
