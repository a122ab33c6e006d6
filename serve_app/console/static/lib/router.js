// Pages by the part of the address behind `#`: one file serves them all.

/** {name, parameter, query} of `#/name/parameter?query`. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", parameter = ""] = path.split("/");
  return { name, parameter: decoded(parameter), query: new URLSearchParams(query) };
}

/** As it is where it is no escaped text. */
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
