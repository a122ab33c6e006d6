// Stores the contents of the forms of this tab, and a request with which another page begins.

const PREFIX = "darkroom.draft.";

export function keep(flavour, content) {
  try {
    sessionStorage.setItem(PREFIX + flavour, JSON.stringify(content));
  } catch {
    // The storage is full, so the form is empty at the next visit.
  }
}

export function kept(flavour) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + flavour));
  } catch {
    return null;
  }
}
