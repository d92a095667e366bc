// Requests to the API of the service, and its errors in plain words.

let adminKey = "";
export const setAdminKey = (key) => { adminKey = key.trim(); };

export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The JSON answer. `body` is sent as JSON, or as it is with `media`; `admin` shows the administrator's key, if one was
// typed in. Without it the browser shows the key that it was given when the page was opened.
export async function call(path, { method = "GET", body, media, admin = false, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = media || "application/json";
  const own = admin && adminKey !== "";
  if (own) headers.Authorization = `Bearer ${adminKey}`;
  const content = body === undefined || media ? body : JSON.stringify(body);
  let reply;
  try {
    reply = await fetch(path, { method, headers, body: content, signal, credentials: own ? "omit" : "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The service does not answer. Check that it is still running.");
  }
  if (reply.ok) return reply.json();
  throw await failure(reply, own);
}

async function failure(reply, own) {
  let detail = {};
  try {
    detail = (await reply.json()).error || {};
  } catch {
    // not the service's own answer: a proxy's
  }
  const said = detail.message || `The service answered with status ${reply.status}.`;
  const wait = Number(reply.headers.get("Retry-After"));
  const again = wait > 0 ? ` Try again in ${wait} second${wait === 1 ? "" : "s"}.` : "";
  return new ApiError(words(reply.status, said, own) + again, reply.status, detail.code);
}

function words(status, said, own) {
  if (status === 401 && own) return "The administrator's key is not valid.";
  if (status === 429) return `The service is busy: ${said}`;
  if (status === 503) return `The service is not ready: ${said}`;
  if (status === 504) return "The service did not answer in time.";
  return said;
}
