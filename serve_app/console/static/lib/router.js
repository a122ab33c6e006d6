// Finds the page from the part of the address after `#`. All pages are in one HTML file.

/** Returns {name, parameter, query} of the address `#/name/parameter?query`. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", parameter = ""] = path.split("/");
  return { name, parameter: decoded(parameter), query: new URLSearchParams(query) };
}

/** Returns the decoded text, or the same text if it is not correctly escaped. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function go(address) {
  location.hash = address;
}

export function onMove(action) {
  addEventListener("hashchange", action);
}
