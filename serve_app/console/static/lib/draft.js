// A request that another page is to begin with, and what stands in the forms of this tab.

const PREFIX = "darkroom.draft.";

export function keep(flavour, content) {
  try {
    sessionStorage.setItem(PREFIX + flavour, JSON.stringify(content));
  } catch {
    // There is no room. The form begins anew next time.
  }
}

export function kept(flavour) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + flavour));
  } catch {
    return null;
  }
}
